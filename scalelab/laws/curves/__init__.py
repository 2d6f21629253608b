"""Laws of the loss within a run, from the learning rate of every step: they predict the curve of another schedule.

Read in this order: `curve` (a run's curve, and the sums over its schedule), `fit` (the entry point),
`problem` (derivatives), `spread` (intervals by run).
"""
