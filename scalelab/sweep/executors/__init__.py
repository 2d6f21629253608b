"""Who runs the packs of a sweep: a bounded pool of workers on this machine.

Read in this order: `pool` (workers as long as the study), `worker` (one pack after the other).
"""
