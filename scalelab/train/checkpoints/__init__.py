"""Checkpoints on disk: write, verify, prune.

Read in this order: `checkpoint` (save and restore), `unfinished` (a save that has started), `manifest` (a SHA-256 of
every file), `hashes` (each process computes its share of them), `leaves` (names of a state's arrays), `health` (whether
a saved state is healthy), `logs` (log lines that a checkpoint relies on).
"""
