"""A step's update: `update` (parameters, optimizer state, average), `curvature` (what Sophia estimates for it)."""
