"""Training: from a resolved config to a verdict.

Read in this order: `spec` (what one run trains, made once), `step` (the pure step), `run` (the loop around it),
`checkpoints` (what is saved), `resume` (going on from it), `coordcheck` (activations by width or depth).
"""

from scalelab.errors import refuse_calls

refuse_calls(__name__)
