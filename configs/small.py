r"""GPT-2 small on bytes: 86 M parameters with a vocabulary of 256.

    scalelab train --config=configs/small.py --workdir=runs/small \
        --config.data.source=text --config.data.path='corpus/*.txt'

2.6e9 tokens, 1.6e18 FLOPs (exact): four hours on one A100 at 40 % of its bf16 peak. Not run by us.
"""

from ml_collections import ConfigDict

from scalelab.configs import base


def get_config() -> ConfigDict:
    """Radford et al. 2019's smallest shape; LR and batch as nanoGPT's GPT-2 (6e-4, 0.5 M tokens)."""
    config = base.get_config()
    config.model = base.gpt2(d_model=768, n_layers=12, n_heads=12)
    config.model.seq_len = 1024
    config.optim.peak_lr = 6e-4
    config.train.global_batch = 512
    config.train.steps = 5000
    config.precision.name = "bf16"
    config.eval.every_steps = 500
    config.checkpoint.every_steps = 1000
    return config
