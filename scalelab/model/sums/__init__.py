"""What a pass over a batch sums up: its loss, what blocks give beside the residual stream, and measures of layers."""
