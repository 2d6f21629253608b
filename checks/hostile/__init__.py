"""What is done to runs, files and stores, from kills to forged names, and whether it is survived; hidden studies."""
