"""The gradient noise scale of a run: its formulas, and what they need of a checkpoint."""
