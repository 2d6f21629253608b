"""Train a window of a run again from a checkpoint before it, unchanged and under what-ifs; name the cheapest cure.

Read `what_ifs.py` (the possible changes), `window.py` (the steps, in one program), `judge.py` (which what-ifs work, and
their cost), `search.py` (which batches bring the spike) and `report.py` (the entry). The run is only read.
"""
