"""Evaluation of trained runs: losses on any data, tasks, samples, and comparisons of two runs.

Read in this order: `subject` (the weights on a device), `losses`, `tasks` and `choices` (tasks by likelihood),
`evaluations` (rows of `scalelab eval`), `sample` (text), `noise` and `compare` (two runs).
"""
