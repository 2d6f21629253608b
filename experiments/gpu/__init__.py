"""What is measured first where there is a GPU: one part a file, each kept as soon as it is done."""
