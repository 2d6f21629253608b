"""The models of `make quickstart`: two layers, four heads, bytes, sequences of 64.

    python -m experiments.isoflop --quick --workdir=runs/quickstart

The study changes width, steps, learning rate and warm-up by the ladder's rule; all other values are set here.
"""

from ml_collections import ConfigDict

from scalelab.configs import base


def get_config() -> ConfigDict:
    """RoPE, RMSNorm, squared ReLU, tied head; WSD with a linear fall to zero; validation on 131k fixed bytes."""
    config = base.get_config()
    config.model = base.llama(d_model=64, n_layers=2, n_heads=4)
    config.model.mlp = "relu2"
    config.model.tied_head = True
    config.model.seq_len = 64
    config.parametrization.name = "mup"
    config.parametrization.base_width = 64
    config.schedule.name = "wsd"
    config.schedule.decay_share = 0.3
    config.schedule.final_share = 0.0
    config.train.global_batch = 8
    config.train.steps_per_dispatch = 100
    config.eval.batches = 256
    return config
