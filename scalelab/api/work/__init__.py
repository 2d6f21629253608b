"""Train: `training` (a run), `sweeping` (a grid), `studies`, `twins`; `api/door.py` has the order in which work starts.

`together` runs one process of several that share a run.
"""
