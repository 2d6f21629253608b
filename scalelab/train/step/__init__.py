"""One training step as a pure function, and what it is made of.

Read in this order: `step` (the whole step), `gradients` (loss and gradient over micro-batches), `state` (what a run
carries), `metrics` (which metrics can be logged), `layers` (what is measured of each layer), `guard` and `incident`
(alarms, and what they change), `program` (the step compiled for one or many trials), `ema`, `curvature`,
`formats_found` (number formats of the traced step).
"""
