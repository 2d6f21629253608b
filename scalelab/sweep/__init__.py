"""Sweeps: train a grid of trials. Trials that share a program form a pack; packs run in a bounded pool of processes.

`scalelab.sweep(config, workdir)` calls `scalelab.api.sweep`.
"""

import scalelab

scalelab.make_callable(__name__)
