"""One run, from its folder to its verdict; `train.single` is the door.

Read in this order: `run` (its folder and record), `loop` (dispatch, evaluate, save), `feed` and
`sources` (what is read), `metrics` (the lines that are written).
"""
