"""Experts at equal active compute: read `runs.py` (the grid), then `answers.py`, then `__main__.py`."""
