"""The executors that run the packs of a sweep: a bounded pool of workers on this machine.

Read in this order: `pool` (starts workers and hands out packs), `worker` (trains one pack after the other).
"""
