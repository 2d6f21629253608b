"""`train.updates=per_layer`: the backward of a step in which the gradients of one layer exist at a time.

Read in this order: `backward` (the pieces of a step, and the norm of its gradient), `update` (the second backward, in
which each layer is updated as soon as its gradient is known), `refusals` (what has no place in such a step).
"""
