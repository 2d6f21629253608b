"""A sweep before it starts.

Read in this order: `sweep` (every run's cost and the total), `forecast` (what its fit is expected to tell).
"""
