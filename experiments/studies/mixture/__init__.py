"""Mixtures of training data: read `runs.py` (corpora and runs), then `answers.py`, then `__main__.py`."""
