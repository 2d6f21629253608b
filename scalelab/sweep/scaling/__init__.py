"""Runs by size: from a recipe or a budget to configs.

Read in this order: `ladder` (from size and budget to a run), `rules` (learning rate and batch), `recipes` (published
recipes), `shrink` and `proxy` (scaled-down twins).
"""
