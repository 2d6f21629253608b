"""Optimizers compared, each at its own tuned values: runs (`race.py`), their ranking (`ranking.py`), the command."""
