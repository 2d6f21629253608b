"""What a change is worth in compute: m(C), with which the baseline at m C is as good as the variant at C.

Read in this order: `sides` (rows -> losses of both sides at each rung), `baseline_law` (many fits of E + A C^-alpha at
once), `noise` (errors of losses over seeds, and draws of them), `rungs`, `trend` and `verdict` (the parts of
the result), `estimate` (the entry point), `result` (its JSON), `design` (power before compute; the next pair of runs).
"""
