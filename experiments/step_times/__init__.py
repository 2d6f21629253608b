"""The planner's step times against published ones."""
