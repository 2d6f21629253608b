r"""A Llama of 302 M parameters on bytes.

    scalelab train --config=configs/medium.py --workdir=runs/medium \
        --config.data.source=text --config.data.path='corpus/*.txt'

9.1e9 tokens, 2.2e19 FLOPs (exact): two days on one A100 at 40 % of its bf16 peak. Not run by us.
"""

from ml_collections import ConfigDict

from scalelab.configs import base


def get_config() -> ConfigDict:
    """24 layers of width 1024; 30 tokens a parameter."""
    config = base.get_config()
    config.model = base.llama(d_model=1024, n_layers=24, n_heads=16)
    config.model.seq_len = 2048
    config.model.remat = "dots"
    config.optim.peak_lr = 3e-4
    config.train.global_batch = 512
    config.train.steps = 8700
    config.train.accumulate = 8
    config.precision.name = "bf16"
    config.eval.every_steps = 500
    config.checkpoint.every_steps = 1000
    return config
