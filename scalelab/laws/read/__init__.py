"""Tables of runs, read and filtered.

Read in this order: `readers` (file formats), `columns` (which holds what), `numbers` (how they are written), `table`
(rows), `where` (subsets by an expression), `points` (checked numbers), `units` (questions about values), `groups` (rows
that belong together).
"""
