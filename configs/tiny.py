"""A 0.1 M-parameter Llama on this Python's own source text: the smallest run that really learns.

    scalelab train --config=configs/tiny.py --workdir=runs/tiny

Under 30 s on 2 CPU cores.
"""

from ml_collections import ConfigDict

from scalelab.configs import base


def get_config() -> ConfigDict:
    """300 steps of 16 x 128 bytes, saved every 20."""
    config = base.get_config()
    config.model = base.llama(d_model=64, n_layers=2, n_heads=4)
    config.optim.peak_lr = 1e-2
    config.train.steps = 300
    config.checkpoint.every_steps = 20
    return config


def tune():
    """What `scalelab tune` searches: AdamW's learning rate, decay and second beta."""
    return {
        "nuisance": {
            "optim.peak_lr": (1e-3, 1e-1, "log"),
            "optim.weight_decay": (0.01, 1.0, "log"),
            "optim.beta2": (0.9, 0.999, "one_minus"),
        },
        "fixed": ["train.global_batch", "train.steps"],
    }
