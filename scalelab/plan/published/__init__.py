"""Published figures computed again: what `scalelab reproduce textbook` and `scalelab reproduce closed_forms` print.

Read in this order: `textbook` and `quantities` (numbers of teaching texts), `claims` and `sizes` (their sentences),
`errata` (sentences that no code can judge), `mfu`, `zero`, `roofline`, `weak_scaling` (closed forms and plans of
papers), `closed_forms` (these beside the figures that the papers print).
"""
