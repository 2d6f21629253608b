"""Trains a window of a run again from a checkpoint before it, as it was and under what-ifs; names the cheapest cure.

Read `what_ifs.py` (what can be asked), `window.py` (the steps, in one program), `judge.py` (which what-ifs work, and
what they cost), `search.py` (which batches bring the spike) and `report.py` (the door). The run stays as it is.
"""
