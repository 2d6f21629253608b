"""The work of `scalelab prepare`: documents of any source into a verified folder of token shards.

Read in this order: `request` (the user's options), `specs` (sources by name), `validation` (sets of the user's own),
`job` (the tokenizer), `units` (one piece of work), `pool` (several processes), `screen` (copies and leaks; `near` has
MinHash), `merge` (units into shards), `index`, `corpus` (all steps together), `prepared` (reads a finished folder).
"""
