"""Budgets by a law: how large, how long, at which loss.

Read in this order: `book` (a law to plan by), `lawbook` (the published ones), `lawfile` (a user's own), `allocate` (N and D of a
budget), `repetition`, `serving`, `overtraining` (what changes it), `solve` (root and minimum of many rows).
"""
