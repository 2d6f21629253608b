"""The model of the study of a provoked spike: two blocks of width 32 on bytes, SGD with momentum.

    python -m experiments.spike --quick --workdir=runs/spike

The study changes learning rate, clipping, warm-up and seed; all other values are set here. Adam divides a gradient by
its own size, so that it hides this spike: SGD shows it.
"""

from ml_collections import ConfigDict

from scalelab.configs import base


def get_config() -> ConfigDict:
    """512 tokens a step, 400 steps, a cosine to zero; every step is logged, since a spike may last for one."""
    config = base.get_config()
    config.model = base.llama(d_model=32, n_layers=2, n_heads=2)
    config.model.seq_len = 64
    config.optim.name = "momentum"
    config.optim.weight_decay = 0.0
    config.schedule.final_share = 0.0
    config.train.global_batch = 8
    config.train.steps = config.eval.every_steps = config.checkpoint.every_steps = 400
    config.log.every_steps = 1
    return config
