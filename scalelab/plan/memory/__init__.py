"""What a device holds during a step.

Read in this order: `memory` (component by component), `saved_activations` (residuals of the real vjp), `megatron`
(closed forms of the papers), `single_gpu` (the largest micro-batch), `advice` (what would fit), `fits_here` (asked
before a run compiles).
"""
