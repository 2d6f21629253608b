"""Object stores: a run, sweep or corpus at s3://bucket/path or gs://bucket/path, worked on in a local folder.

The work is done in a local folder as ever; `attached` keeps the store's copy up to date meanwhile. In the store all
objects but one are immutable:

    PATH/head.json                          the owner, its last sign of life, and the name of the present index
    PATH/index/SHA                          every file of the folder, as the objects that it consists of
    PATH/files/metrics.jsonl/START-SHA      a part of a file
    PATH/files/checkpoints/120-SHA/state/…  a checkpoint, in Orbax's own files

An index is written after what it names, and counts once head.json names it. That object is replaced only by a put on
the condition that nobody has replaced it since: so it is the lock as well, and an owner that lost it can't publish.
Nothing is renamed, appended to, or found by listing (but the runs inside a folder of runs).
"""
