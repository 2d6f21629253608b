"""One run, from its folder to its verdict; `train.single` is the door.

Read in this order: `opening` (its checks and its record), `folder` (its files), `run` (its status), `session` (what one
call gives it), `loop` (dispatch, evaluate, save), `feed` and `sources` (what is read), `metrics` (the lines that are
written).
"""
