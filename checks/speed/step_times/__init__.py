"""The planner's step times compared with published ones."""
