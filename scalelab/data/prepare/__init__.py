"""What `scalelab prepare` does: documents of any source into a verified folder of token shards.

Read in this order: `request` (what is asked for), `specs` (sources by name), `units` (one piece of work), `pool` (many at a
time), `merge` (units into shards), `corpus` (the whole), `prepared` (such a folder read again).
"""
