"""What a run is, and what may change between it and its continuation.

Read in this order: `spec` (what one run trains, made once), `facts` (what a checkpoint states), `own_code` (users'
functions on record), `compatibility` (the one place that decides what may change), `extend` (whether the schedule's
past stays as it was), `mixed` (changes allowed on the way), `determinism` (what is promised of the bits).
"""
