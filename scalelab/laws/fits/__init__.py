"""Laws fitted to tables.

Read in this order: `fitting` (the entry point), `fitted` (what it returns), `groups` (one law for groups of runs),
`study` (from a table to a fit: which runs count).
"""
