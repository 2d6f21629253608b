"""What `make gpu` asks: each module lists questions, and answers one at a time with a row of numbers."""
