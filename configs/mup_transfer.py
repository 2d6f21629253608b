"""The models of the study of learning-rate transfer over widths: one block, bytes, sequences of 32.

    python -m experiments.mup_transfer --quick --workdir=runs/mup_transfer

The study changes width, parametrization, learning rate and seed; all other values are set here.
"""

from ml_collections import ConfigDict

from scalelab.configs import base


def get_config() -> ConfigDict:
    """Width 32 with two heads of 16; constant LR after a short warm-up, no decay; validation on 16k fixed bytes."""
    config = base.get_config()
    config.model = base.llama(d_model=32, n_layers=1, n_heads=2)
    config.model.mlp = "gelu"
    config.model.seq_len = 32
    config.parametrization.base_width = 32
    config.schedule.name = "constant"
    config.schedule.warmup_steps = 10
    config.optim.weight_decay = 0.0
    config.train.global_batch = 8
    config.train.steps = 200
    config.train.steps_per_dispatch = 200
    config.eval.batches = 64
    config.eval.every_steps = 200
    config.checkpoint.every_steps = 200
    config.log.every_steps = 20
    return config
