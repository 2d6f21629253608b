"""Tables of runs, read and filtered.

Read in this order: `readers` (file formats), `table` (columns), `where` (subsets by an expression), `points` (checked
numbers), `study` (from a table to a fit).
"""
