"""The gradient noise scale of a run: `estimate` (formulas) and `measure` (gradients from a checkpoint)."""
