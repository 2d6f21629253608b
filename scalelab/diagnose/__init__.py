"""Diagnose a run: name by evidence the cause of what went wrong. The run is only read.

Read `evidence.py` (what a run has), `verdict.py` (what a check returns) and `rank.py` (the door), then the families of
causes in `checks/`; `probes/` asks the model itself (`--live`), `batch.py` names the documents of a step, and
`replay/` trains a window again.
"""
