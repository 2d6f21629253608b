"""Llama 3 70B (Llama team 2024, arXiv 2407.21783): dense, 128k tokens of vocabulary, far beyond compute-optimal.

    scalelab train --config=configs/recipes/llama3_70b.py --workdir=runs/llama3_70b

Looked up: section 3.4.1 and Table 3 of the text; parameters from the Hub's safetensors totals. AdamW's betas and eps
are not published: ours, as Llama 2's but for eps.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import LLAMA3_SHARES, keep_watch

PUBLISHED = {"total": 70_553_706_496, "tokens": 15e12}
DATA_SHARES = LLAMA3_SHARES
NOT_REPRODUCED: tuple[str, ...] = (
    "long-context stages up to 128k tokens, 800 B tokens in all, with rope's base or scaling changed (section 3.4.2)",
    "annealing of the last 40 M tokens to 0 on better data, and the average of its checkpoints (section 3.4.3): "
    "branch off for it",
    "data mixture changed during training (section 3.4.1): give data.mixture its steps",
)


def get_config() -> ConfigDict:
    """Table 3 and section 3.4.1."""
    config = base.get_config()
    config.model = base.llama(d_model=8192, n_layers=80, n_heads=64)  # Table 3
    config.model.n_kv_heads = 8  # Table 3: grouped-query attention
    config.model.d_ff = 28_672  # Table 3
    config.model.vocab_size = 128_256  # section 3.2: 128k tokens; 256 of them reserved (config.json)
    config.model.seq_len = 8192  # section 3.4.1
    config.model.rope_theta = 500_000.0  # Table 3: for longer contexts
    config.model.norm_eps = 1e-5  # config.json
    config.data.documents = "mask"  # section 3.2: no attention between documents of a sequence
    config.optim.peak_lr = 1.5e-4  # Table 3
    config.optim.weight_decay = 0.1  # section 3.2.1: 0.1 x the learning rate at each step, of their scaling runs
    config.schedule.name = "cosine"  # section 3.4.1
    config.schedule.warmup_steps = 8000  # the 405B's; "similar recipes" for this size (section 3.4)
    config.schedule.final_share = 0.01  # the 405B's
    config.train.global_batch = (
        1024  # x 8192 = 8 M tokens; not published for this size: ours, between the 405B's stages
    )
    config.train.steps = 1_788_139  # 1.5e13 tokens ("15T+" on the model card)
    config.precision.name = "bf16"  # section 3.3.2; no recomputation there either, so model.remat stays none
    keep_watch(config)
    return config
