"""Going on: what may change between a run and its continuation, and where the continuation starts.

Read in this order: `facts` (what a checkpoint states), `compatibility` (the one place that decides what may change),
`extend` (whether the schedule's past stays as it was), `start` (the one place that restores a state), `branch` (a decay
from a trunk), `handover` and `weights` (parts of a state), `mixed` (changes allowed on the way), `determinism` (what is
promised of the bits), `rewind` (back before an alarm, and what is changed from there), `catch_up` (a pack's trial that
does so).
"""
