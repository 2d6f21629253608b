"""Mistral 7B (Jiang et al. 2023, arXiv 2310.06825): a window of 4,096 tokens and grouped queries; training unpublished.

    scalelab train --config=configs/recipes/mistral_7b.py --workdir=runs/mistral_7b

The model alone is published: every line on training is ours, and so is the number of tokens. Looked up: Table 1 and
config.json; the parameters follow from them.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 7_241_732_096}
NOT_REPRODUCED: tuple[str, ...] = ("data, tokens, learning rate and batch: none was published",)


def get_config() -> ConfigDict:
    """Table 1; config.json."""
    config = base.get_config()
    config.model = base.llama(d_model=4096, n_layers=32, n_heads=32)  # Table 1
    config.model.n_kv_heads = 8  # Table 1
    config.model.d_ff = 14_336  # Table 1: hidden_dim
    config.model.vocab_size = 32_000  # Table 1
    config.model.seq_len = 8192  # Table 1: context_len
    config.model.window = 4096  # Table 1: window_size, in every layer
    config.model.norm_eps = 1e-5  # config.json
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 3e-4  # not published: ours, Llama 2 7B's
    config.optim.weight_decay = 0.1  # not published: ours, Llama 2's
    config.schedule.name = "cosine"  # not published: ours, Llama 2's
    config.schedule.warmup_steps = 2000  # not published: ours, Llama 2's
    config.train.global_batch = 512  # x 8192 = 4 M tokens, Llama 2's; not published: ours
    config.train.steps = 476_837  # 2e12 tokens, Llama 2's; not published: ours
    config.precision.name = "bf16"  # not published: ours
    keep_watch(config)
    return config
