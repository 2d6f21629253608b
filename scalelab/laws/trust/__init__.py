"""How far to trust a fit, before and after it.

Read in this order: `identifiable` (can these runs tell the parameters apart?), `uncertainty` (bootstrap), `profile`
(profile likelihood), `information` (linearised), `holdout` and `tournament` (extrapolation).
"""
