"""A plain transformer written out from the config's keys, and what the trained program differs from it in (`--live`).

Nothing here calls the model's functions but `trained.py`, which runs them: read `model.py` (the mathematics),
`batch.py` (targets and documents), `compare.py` (both sides). Shapes: B batch, S sequence, D d_model, V vocab.
"""
