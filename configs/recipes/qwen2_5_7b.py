"""Qwen 2.5 7B (Qwen team 2024, arXiv 2412.15115): biases on q, k and v, a wide MLP; training mostly unpublished.

    scalelab train --config=configs/recipes/qwen2_5_7b.py --workdir=runs/qwen2_5_7b

1.8e13 tokens. Looked up: parameters through the Hub's totals; the shape in excerpts of config.json. LR, batch, schedule
and precision are ours.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 7_615_616_512, "tokens": 18e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "learning rate and batch by their own scaling laws of hyperparameters (section 3.2), which give no numbers",
    "long-context stage at 32k tokens with rope's base at 1e6 (section 3.3)",
)


def get_config() -> ConfigDict:
    """config.json; section 3."""
    config = base.get_config()
    config.model = base.llama(d_model=3584, n_layers=28, n_heads=28)  # config.json
    config.model.n_kv_heads = 4  # config.json
    config.model.d_ff = 18_944  # config.json
    config.model.vocab_size = 152_064  # config.json: 151,643 tokens and room
    config.model.seq_len = 4096  # section 3.3: of the first stage
    config.model.qkv_bias = True  # section 2: QKV bias, for extrapolation to longer sequences
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 3e-4  # not published: ours
    config.optim.weight_decay = 0.1  # not published: ours
    config.schedule.name = "cosine"  # not published: ours
    config.schedule.warmup_steps = 2000  # not published: ours
    config.train.global_batch = 1024  # x 4096 = 4 M tokens; not published: ours
    config.train.steps = 4_291_534  # 1.8e13 tokens (section 3)
    config.precision.name = "bf16"  # not published: ours
    keep_watch(config)
    return config
