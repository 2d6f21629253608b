"""What this project trains: the smallest shipped config, with our optimizer; `sweep` is the grid of `make sweep`.

About 10 seconds a run on two cores. Any key of `scalelab config` can be set here, or on the command line as
--config.optim.peak_lr=3e-3. Start from another config or recipe by importing it: scalelab.configs.recipes.llama3_8b.
"""

from scalelab.configs import tiny

LEARNING_RATES = (1e-3, 3e-3, 1e-2)
SEEDS = (0, 1)


def get_config():
    """The shipped config with this project's values."""
    config = tiny.get_config()
    config.train.steps = 200
    config.eval.every_steps = 100
    config.optim.name = "functions:soft_signs"  # our own; "adamw" is the default
    config.optim.peak_lr = 3e-3
    config.optim.own.gamma = 1e-3  # a number that only our optimizer knows
    return config


def sweep(h):
    """Every learning rate with every seed; all share one compiled program."""
    return h.product([h.sweep("optim.peak_lr", LEARNING_RATES), h.sweep("train.seed", SEEDS)])
