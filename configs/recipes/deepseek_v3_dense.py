"""Not DeepSeek-V3: its settings (DeepSeek-AI 2024, arXiv 2412.19437) on a dense model of its width and depth.

    scalelab train --config=configs/recipes/deepseek_v3_dense.py --workdir=runs/deepseek_v3_dense

1.43e13 tokens; 54.7e9 parameters that V3 never had (it has 671e9, 37e9 of them active). What carries over is how it was
trained: section 4.2's schedule, batch warm-up, small init and tiles of fp8. Looked up: section 4.2's text; the rest
from memory.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"tokens": 14.8e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "mixture of experts after the third layer, routing without an auxiliary loss (section 2.1): all layers dense, "
    "as its first three are",
    "multi-head latent attention (section 2.1): full keys and values for all 128 heads",
    "multi-token prediction (section 2.2)",
    "the last 500 B tokens at constant LR, 2.2e-5 and 7.3e-6 (section 4.2): the run ends with the cosine",
    "embedding, head, norms and attention in higher precision than fp8 (section 3.3): all projections of the blocks "
    "take tiles of fp8",
    "bf16 moments of AdamW (section 3.3.3): fp32",
)


def get_config() -> ConfigDict:
    """Section 4.2."""
    config = base.get_config()
    config.model = base.llama(d_model=7168, n_layers=61, n_heads=128)  # section 4.2
    config.model.d_head = 128  # section 4.2
    config.model.d_ff = 18_432  # config.json: intermediate_size of the dense layers (from memory)
    config.model.vocab_size = 129_280  # config.json (from memory)
    config.model.seq_len = 4096  # section 4.2
    config.model.init_std = 0.006  # section 4.2: all learnable parameters
    config.model.projection_std = 0.006  # section 4.2
    config.model.remat = "full"  # section 3.2 recomputes norms and up-projections only; ours: memory first
    config.optim.peak_lr = 2.2e-4  # section 4.2
    config.optim.beta1 = 0.9  # section 4.2
    config.optim.beta2 = 0.95  # section 4.2
    config.optim.weight_decay = 0.1  # section 4.2
    config.optim.clip_norm = 1.0  # section 4.2
    config.schedule.name = "wsd"  # section 4.2: constant to 10 T tokens, then a cosine over 4.3 T
    config.schedule.warmup_steps = 2000  # section 4.2
    config.schedule.decay_shape = "cosine"  # section 4.2
    config.schedule.decay_steps = 68_346  # section 4.2: 4.3 T tokens
    config.schedule.final_share = 0.1  # section 4.2: to 2.2e-5
    config.schedule.batch_start = 3072  # section 4.2
    config.schedule.batch_warmup_tokens = 469_000_000_000  # section 4.2: to 15,360 over 469 B tokens
    config.train.global_batch = 15_360  # section 4.2; x 4096 = 63 M tokens
    config.train.accumulate = 20  # ours: the batch grows by 768 sequences
    config.train.steps = 235_814  # 1.43e13 tokens, batch warm-up included
    config.precision.name = "fp8_block"  # section 3.3: tiles of 128
    keep_watch(config)
    return config
