"""From token shards to batches: batch = f(seed, step).

Read in this order: `shards` (files on disk), `order` (one permutation per epoch), `mixture` (the source of each row),
`batches` (random access, the same for any number of hosts).
"""
