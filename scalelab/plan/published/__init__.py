"""Published figures computed again: what `scalelab reproduce textbook` prints.

Read in this order: `textbook` and `claims` (numbers and sentences of teaching texts), `mfu`, `zero`, `roofline` (closed forms of
papers).
"""
