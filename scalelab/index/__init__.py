"""Read many runs through an index beside them: `table.py` (rows of runs), `store.py` (the file, and when it is valid).

The index is a cache: it gives the rows that `records` reads. It may be deleted at any time.
"""
