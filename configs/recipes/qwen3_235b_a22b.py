"""Qwen 3 235B-A22B (Qwen team 2025, arXiv 2505.09388): 128 experts, 8 a token, none shared; QK-norm.

    scalelab train --config=configs/recipes/qwen3_235b_a22b.py --workdir=runs/qwen3_235b_a22b

3.0e13 tokens: stage 1 of three; 2.35e11 parameters, 2.2e10 of them active. Looked up: config.json as
scripts/models/ of THUDM/slime has it, and the defaults of transformers' Qwen3MoeConfig. Training is mostly unpublished.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

# Every parameter by transformers' own class (tests/hf/oracle/counts.json); README.md: active, cut off after a digit.
PUBLISHED = {"total": 235_093_634_560, "active": 22e9, "tokens": 36e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "stage 2, 5 T tokens of better data with a faster decay, and the long-context stage with rope's base at 1e6 "
    "(section 3.2)",
    "learning rate and batch by their own scaling laws of hyperparameters (section 3.2), which give no numbers",
)


def get_config() -> ConfigDict:
    """config.json; section 3.2."""
    config = base.get_config()
    config.model = base.llama(d_model=4096, n_layers=94, n_heads=64)  # Table 2
    config.model.n_kv_heads = 4  # Table 2
    config.model.d_head = 128  # config.json
    config.model.d_ff = 12_288  # config.json: of dense layers, which this model doesn't have
    config.model.block = "experts"  # config.json: decoder_sparse_step of 1
    config.model.n_experts = 128  # Table 2
    config.model.experts_per_token = 8  # Table 2
    config.model.d_expert = 1536  # config.json: moe_intermediate_size
    config.model.balance_rate = 0.0  # section 2: a loss alone balances
    config.model.balance_weight = 1e-3  # section 2: over the global batch; config.json: router_aux_loss_coef
    config.model.vocab_size = 151_936  # config.json: 151,669 tokens and room
    config.model.seq_len = 4096  # section 3.2: of stages 1 and 2
    config.model.qk_norm = True  # section 2: for stable training; each head by itself (modelling code)
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
