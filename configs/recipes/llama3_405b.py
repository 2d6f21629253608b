"""Llama 3 405B (Llama team 2024, arXiv 2407.21783): dense, 128k tokens of vocabulary, far beyond compute-optimal.

    scalelab train --config=configs/recipes/llama3_405b.py --workdir=runs/llama3_405b

Looked up: section 3.4.1 and Table 3 of the text; parameters from the Hub's safetensors totals. AdamW's betas and eps
are not published: ours, as Llama 2's but for eps.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import LLAMA3_SHARES, keep_watch

PUBLISHED = {"total": 405_853_388_800, "tokens": 15.6e12, "flops": 3.8e25}
DATA_SHARES = LLAMA3_SHARES
NOT_REPRODUCED: tuple[str, ...] = (
    "sequences jump from 4,096 to 8,192 at 252 M tokens (section 3.4.1): here they grow linearly up to there",
    "long-context stages up to 128k tokens, 800 B tokens in all, with rope's base or scaling changed (section 3.4.2)",
    "annealing of the last 40 M tokens to 0 on better data, and the average of its checkpoints (section 3.4.3): "
    "branch off for it",
    "data mixture changed during training (section 3.4.1): give data.mixture its steps",
)


def get_config() -> ConfigDict:
    """Table 3 and section 3.4.1."""
    config = base.get_config()
    config.model = base.llama(d_model=16_384, n_layers=126, n_heads=128)  # Table 3
    config.model.n_kv_heads = 8  # Table 3: grouped-query attention
    config.model.d_ff = 53_248  # Table 3
    config.model.vocab_size = 128_256  # section 3.2: 128k tokens; 256 of them reserved (config.json)
    config.model.seq_len = 8192  # section 3.4.1
    config.model.rope_theta = 500_000.0  # Table 3: for longer contexts
    config.model.norm_eps = 1e-5  # config.json
    config.data.documents = "mask"  # section 3.2: no attention between documents of a sequence
    config.optim.peak_lr = 8e-5  # Table 3
    config.optim.weight_decay = 0.1  # section 3.2.1: 0.1 x the learning rate at each step, of their scaling runs
    config.schedule.name = "cosine"  # section 3.4.1
    config.schedule.warmup_steps = 8000  # section 3.4.1
    config.schedule.final_share = 0.01  # section 3.4.1: 8e-5 to 8e-7
    config.schedule.fall_share = (
        1_200_000 / 1_100_928
    )  # section 3.4.1: over 1.2 M steps, of which the tokens fill these
    config.schedule.batch_stages = (
        "512; 60: 1024; 342161: 2048"  # section 3.4.1: 4 M tokens, 8 M after 252 M, 16 M after 2.87 T
    )
    config.schedule.seq_start = 4096  # section 3.4.1: sequences of 4,096 at first
    config.schedule.seq_warmup_tokens = 252_000_000  # section 3.4.1: 8,192 from there on; here they grow up to it
    config.train.global_batch = 2048  # x 8192 = 16 M tokens (section 3.4.1)
    config.train.accumulate = 4  # ours: the batch doubles twice
    config.train.steps = 1_100_928  # 15.6e12 tokens (section 1), derived from the stages
    config.precision.name = "bf16"  # section 3.3.2; no recomputation there either, so model.remat stays none
    keep_watch(config)
    return config
