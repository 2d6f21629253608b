"""Plans of whole sweeps.

Read in this order: `sweep` (each run's cost and the totals), `forecast` (expected intervals of its fit).
"""
