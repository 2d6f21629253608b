"""Checkpoints on disk: written, verified, pruned.

Read in this order: `checkpoint` (save and restore), `manifest` (a SHA-256 of every file), `leaves` (names of a state's arrays),
`health` (whether a saved state is sound), `logs` (log lines a checkpoint relies on).
"""
