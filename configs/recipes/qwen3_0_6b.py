"""Qwen 3 0.6B (Qwen team 2025, arXiv 2505.09388): the 0.6B of the dense family; training mostly unpublished.

    scalelab train --config=configs/recipes/qwen3_0_6b.py --workdir=runs/qwen3_0_6b

3.0e13 tokens: stage 1 of three. Looked up: config.json as others repeat it; parameters from memory of the Hub's totals.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 596_049_920, "tokens": 36e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "stage 2, 5 T tokens of better data with a faster decay, and the long-context stage with rope's base at 1e6 "
    "(section 3.2)",
    "learning rate and batch by their own scaling laws of hyperparameters (section 3.2), which give no numbers",
)


def get_config() -> ConfigDict:
    """config.json; section 3.2."""
    config = base.get_config()
    config.model = base.llama(d_model=1024, n_layers=28, n_heads=16)  # config.json; Table 1 for layers and heads
    config.model.n_kv_heads = 8  # Table 1
    config.model.d_head = 128  # config.json: head_dim
    config.model.d_ff = 3072  # config.json
    config.model.vocab_size = 151_936  # config.json: 151,669 tokens and room
    config.model.seq_len = 4096  # section 3.2: of stages 1 and 2
    config.model.qk_norm = True  # section 2: for stable training; each head by itself (modelling code)
    config.model.tied_head = True  # Table 1: tie embedding
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 3e-4  # not published: ours
    config.optim.weight_decay = 0.1  # not published: ours
    config.schedule.name = "cosine"  # not published: ours
    config.schedule.warmup_steps = 2000  # not published: ours
    config.train.global_batch = 1024  # x 4096 = 4 M tokens; not published: ours
    config.train.steps = 7_152_557  # 3.0e13 tokens of stage 1 (section 3.2)
    config.precision.name = "bf16"  # not published: ours
    keep_watch(config)
    return config
