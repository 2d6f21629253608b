"""What follows from a fit.

Read in this order: `chinchilla_optimum` (the closed form), `decision` (N, D and loss of a budget), `isoflop` and
`isoflop_minima` (approach 2), `envelope` (approach 1), `next_runs` (the run that narrows an interval most),
`settings` (best learning rates and batches, and their laws).
"""
