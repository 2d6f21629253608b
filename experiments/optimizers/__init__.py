"""Optimizers compared, each at its own tuned values: design (`race.py`), what is made of it (`ranking.py`), the command."""
