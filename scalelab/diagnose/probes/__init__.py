"""Direct tests on a run's model and state, from its checkpoints (`--live`): the code that runs here is asked.

Each probe returns plain numbers by name; `checks/live.py` judges them. Read `subject.py` (a run at a saved step), then
`probes.py`. Shapes: B batch, S sequence, V vocab.
"""
