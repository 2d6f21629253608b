"""Figures, a file a kind: rows in, a matplotlib Figure out.

Read in this order: `style` (what all share), then any.
"""
