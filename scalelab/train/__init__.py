"""Training: from a resolved config to a verdict.

Read in this order: `single` (the door), `lineage` (what a run is, and what may change), `step` (the pure step), `run`
(the loop around it), `checkpoints` (what is saved), `ledger` (what has been read), `resume` (going on), `coordcheck`
(activations by width or depth).
`scalelab.train(config, workdir)` calls `scalelab.api.train`.
"""

import scalelab

scalelab.make_callable(__name__)
