"""Published figures computed again: what `scalelab reproduce textbook` and `scalelab reproduce closed_forms` print.

Read in this order: `textbook` and `claims` (numbers and sentences of teaching texts), `mfu`, `zero`, `roofline` (closed
forms of papers), `closed_forms` (these beside the figures that the papers print).
"""
