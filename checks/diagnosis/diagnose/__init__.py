"""Planted faults: does `scalelab diagnose` name each cause, and is it silent on healthy runs?

Read `runs.py` (the small run that all share), then `healthy.py` and the files of plants, then `__main__.py`.
"""
