"""Forecast a running run: its final loss with uncertainty, and the worth of stopping or going on.

Read `curve.py` (a run as known at a step), `forecast.py` (the entry), then its parts: `family.py` (finished
siblings under the same schedule), `annealed.py` (the run's own curve), `danger.py` (chance of divergence), `worth.py`
(stop, decay or go on). `score.py` keeps every forecast and scores it; `stop.py` ends a hopeless trial of a sweep.
"""
