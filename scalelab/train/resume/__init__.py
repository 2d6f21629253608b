"""Going on: where the continuation of a run starts.

Read in this order: `start` (the one place that restores a state), `branch` (a decay from a trunk), `handover` and
`weights` (parts of a state), `rewind` (back before an alarm, and what is changed from there), `catch_up` (a pack's
trial that does so). What may change on the way is decided in `train.lineage`.
"""
