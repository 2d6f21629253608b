"""What the stages of a pipeline do and hold: ticks, layers in slots, the work on a chunk of them."""
