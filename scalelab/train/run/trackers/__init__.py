"""Trackers of a run: mirrors of metrics.jsonl, which is the record.

Read in this order: `sinks` (what a mirror is, and those of the user's own), `tensorboard`, `wandb_run`, `alerts`
(who is told of an alarm).
"""
