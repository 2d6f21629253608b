"""Going on: what may change between a run and its continuation, and where the continuation starts.

Read in this order: `compatibility` (what may change), `start` (which state a run starts from), `extend` (more steps),
`branch` (a decay from a trunk), `handover` and `weights` (parts of a state), `mixed` (changes allowed on the way),
`determinism` (what is promised of the bits).
"""
