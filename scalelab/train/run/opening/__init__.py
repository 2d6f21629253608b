"""Opens a run: what may not start is refused, what is special is told, and nothing is written.

Read in this order: `checks` (the list of them), `opening` (which also examines the folder), `description` (the record).
"""
