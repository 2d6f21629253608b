"""From token shards to batches: batch = f(seed, step).

Read in this order: `shards` (files on disk), `order` (a permutation an epoch), `mixture` (which source stands at which row),
`batches` (random access, the same for any number of hosts).
"""
