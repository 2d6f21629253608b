"""Many runs read through an index beside them: `table.py` (what is read of a run), `store.py` (the file, and trust).

The index is a cache: rows that it gives are those that `records` reads. It may be deleted at any time.
"""
