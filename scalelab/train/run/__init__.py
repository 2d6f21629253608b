"""One run from a config to a verdict.

Read in this order: `single` (the door), `run` (its folder and record), `loop` (dispatch, evaluate, save), `feed` and
`sources` (what is read), `metrics` (the lines that are written).
"""
