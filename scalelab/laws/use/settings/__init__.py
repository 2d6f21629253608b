"""From losses of a sweep to its best settings: lr*(N, D), batch*(D).

Read in this order: `surface` (a quadratic surface through the runs of one group), `together` (each surface corrected by
those of all groups), `optima` (its lowest point with an error), `law` (a power law through the optima of all groups),
`best` (all of it, from a table).
"""
