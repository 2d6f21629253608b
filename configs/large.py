r"""A Llama of 1.1 G parameters on bytes.

    scalelab train --config=configs/large.py --workdir=runs/large \
        --config.data.source=text --config.data.path='corpus/*.txt'

2.5e10 tokens, 23 a parameter, 2.0e20 FLOPs (exact): 18 A100 days at 40 % of the bf16 peak. Not run by us.
"""

from ml_collections import ConfigDict

from scalelab.configs import base


def get_config() -> ConfigDict:
    """24 layers of width 2048; grouped queries."""
    config = base.get_config()
    config.model = base.llama(d_model=2048, n_layers=24, n_heads=16)
    config.model.n_kv_heads = 8
    config.model.seq_len = 2048
    config.model.remat = "full"
    config.optim.peak_lr = 2e-4
    config.train.global_batch = 1024
    config.train.steps = 12_000
    config.train.accumulate = 32
    config.precision.name = "bf16"
    config.eval.every_steps = 500
    config.checkpoint.every_steps = 1000
    return config
