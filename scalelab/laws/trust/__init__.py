"""How far to trust a fit, before and after it.

Read in this order: `identifiable` (can these runs tell the parameters apart?), `design` and `grids` (weak points of the
runs), `uncertainty` (bootstrap), `profile` (profile likelihood), `information` (linearised), `holdout` and `tournament`
(extrapolation).
"""
