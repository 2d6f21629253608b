"""A whole run: time and money, checkpoints and failures, batch, serving.

Read in this order: `training`, `checkpoint`, `goodput`, `batch`, `inference`.
"""
