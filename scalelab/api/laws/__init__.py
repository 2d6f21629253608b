"""Laws from Python: `fits` (fit a law), `after` (use a fit), and four other kinds of fits.

These are `approaches` (without a law of N and D), `settings` (best settings), `ladder` (accuracy) and `curves` (within
a run). `sides` judges a table of others' runs.
"""
