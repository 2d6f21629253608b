"""Budgets by a law: the model size, the tokens and the loss.

Read in this order: `book` (a law to plan by), `lawbook` (the published ones), `lawfile` (a user's own), `allocate` (N
and D of a budget), `repetition`, `serving`, `overtraining` (departures from it), `solve` (roots and minima of many
rows).
"""
