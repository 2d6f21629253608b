"""What follows from a fit.

Read in this order: `decision` (N, D and loss of a budget), `isoflop` and
`isoflop_minima` (approach 2), `envelope` (approach 1), `settings` (best learning rates and batches, and their laws).
"""
