"""Object stores: work on a run, sweep or corpus at s3://bucket/path or gs://bucket/path in a local folder.

Work happens in a local folder as usual; `attached` meanwhile keeps the store's copy up to date. All objects of the
store but one are immutable:

    PATH/head.json                          the owner, its last sign of life, and the name of the present index
    PATH/index/SHA                          every file of the folder, as the objects that it consists of
    PATH/files/metrics.jsonl/START-SHA      a part of a file
    PATH/files/checkpoints/120-SHA/state/…  a checkpoint, in Orbax's own files

An index is written after the objects it names, and is valid once head.json names it. head.json is replaced only by a
put with the condition that nobody has replaced it since. So it is the lock as well: an owner that lost it can't
publish. Nothing is renamed, appended to, or looked up by listing, except the runs inside a folder of runs.
"""
