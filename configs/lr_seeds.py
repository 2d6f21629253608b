"""Four learning rates, two seeds: the sweep of the README. One program, one compilation, eight trials.

    scalelab sweep --config=configs/lr_seeds.py --workdir=runs/lr_seeds

A minute or two on 2 CPU cores. Validation losses, mean of both seeds (Python 3.11.7's text, jax 0.10.2, 2026-11-22):
2.081 at 3e-3, 2.064 at 1e-2, 2.327 at 3e-2, 2.667 at 1e-1; the first two are nearer than the seeds are.
"""

from ml_collections import ConfigDict

from scalelab.configs import tiny


def get_config() -> ConfigDict:
    """The tiny run."""
    return tiny.get_config()


def sweep(h):
    """peak_lr x seed."""
    return h.product([h.sweep("optim.peak_lr", [3e-3, 1e-2, 3e-2, 1e-1]), h.sweep("train.seed", range(2))])
