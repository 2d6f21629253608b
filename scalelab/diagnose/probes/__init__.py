"""Direct tests on a run's model and state, from its checkpoints (`--live`), with the code on this machine.

Each probe returns plain numbers by name; `checks/code/live.py` judges them. Read `subject.py` (a run at a saved step),
then `probes.py`. Shapes: B batch, S sequence, V vocab.
"""
