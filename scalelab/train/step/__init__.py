"""One training step as a pure function, and what it is made of.

Read in this order: `step` (the whole step in six calls), `gradients` (loss and gradient over micro-batches), `update/`
(parameters, optimizer state, average; `leave_out`: gradients without micro-batches that are not finite), `report/`
(metrics), `state` (what a run carries), `variables` (the parts of it that are not parameters), `metrics` (which metrics
can be logged), `guard`, `memory` and `incident` (alarms, and what they change), `program` (the step compiled for one or
many trials), `hooks` (a user's functions).
"""
