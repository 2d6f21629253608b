"""Four learning rates, two seeds: the sweep of the README. One program, one compilation, eight trials.

    scalelab sweep --config=configs/lr_seeds.py --workdir=runs/lr_seeds

A minute or two on 2 CPU cores. At 40 steps the best validation loss was at 1e-2; we have not recorded a full run.
"""

from ml_collections import ConfigDict

from configs import tiny


def get_config() -> ConfigDict:
    """The tiny run."""
    return tiny.get_config()


def sweep(h):
    """peak_lr x seed."""
    return h.product([h.sweep("optim.peak_lr", [3e-3, 1e-2, 3e-2, 1e-1]), h.sweep("train.seed", range(2))])
