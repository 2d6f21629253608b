"""A running forecast of the final loss: what it will be, how sure that is, and what stopping or going on is worth.

Read `curve.py` (what is known of a run at a step), `forecast.py` (the door), then its parts: `family.py` (finished
siblings under the same schedule), `annealed.py` (the run's own curve), `danger.py` (chance of divergence), `worth.py`
(stop, decay or go on). `score.py` keeps every forecast and scores it; `stop.py` ends a hopeless trial of a sweep.
"""
