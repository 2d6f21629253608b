"""Number formats of a training run.

Read in this order: `policy` (one record per format set), `products` (fp32 and tf32 on each backend), `fp8` and
`delayed` (scaled operands), `loss_scale`, `rounding`, `states` (what a policy keeps between steps), `formats_in_jaxpr`
(the formats a program really has), `exponent_histograms`.
"""
