"""Training: the pure step, the loop around it, checkpoints and metrics."""
