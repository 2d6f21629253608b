"""Marin's mixture of 1e23 FLOPs (Marin community 2026, issue 4697): 64 experts, 4 a token, and a wide shared one.

    scalelab train --config=configs/recipes/marin_moe_1e23.py --workdir=runs/marin_moe_1e23

1.01e12 tokens; 1.29e11 parameters, 1.6e10 of them active. Looked up: the job's summary in issue 4697 of
marin-community/marin ("summary").
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

# The summary's 129.1e9 and 15.9e9 count gates of norms and heads, 0.14e9: 129.05e9 and 15.80e9.
PUBLISHED = {"tokens": 1.01e12, "flops": 1e23}
NOT_REPRODUCED: tuple[str, ...] = (
    "GatedNorm, a gate of rank 128 after each norm, and a gate on each head's output: 0.14e9 parameters (summary)",
    "XSA: the output of attention without its part along the token's own value (summary)",
    "AdamH, whose updates keep a matrix's norm, at 5.8e-3 beside Adam's 1.34e-3 (summary): AdamW at the latter",
    "QB routing, a bias from quantiles of the last step's scores (summary): the bias that moves by the load's sign",
    "a capacity factor of 1.0 (summary; issue 7981: it drops tokens): none is dropped",
    "queries and keys without learned gains, times 1.3 (summary): with gains",
)


def get_config() -> ConfigDict:
    """The job's summary."""
    config = base.get_config()
    config.model = base.llama(d_model=5120, n_layers=48, n_heads=40)  # summary
    config.model.n_kv_heads = 10  # summary
    config.model.block = "experts"  # summary: in every layer
    config.model.n_experts = 64  # summary
    config.model.experts_per_token = 4  # summary
    config.model.d_expert = 2560  # summary: intermediate_dim
    config.model.n_shared_experts = 2  # summary: a shared MLP 5120 wide
    config.model.router_scores = "sigmoid"  # summary: sigmoid combine weights
    config.model.router_renormalize = False  # summary: the weights are the scores
    config.model.balance_rate = 1e-3  # ours, in the place of QB routing
    config.model.router_z_weight = 1e-4  # summary: z_loss_weight of a router z-loss
    config.model.vocab_size = 128_256  # summary
    config.model.seq_len = 4096  # summary
    config.model.window = 2048  # summary: half of the sequence
    config.model.global_every = 4  # summary: every 4th layer sees all of it
    config.model.qk_norm = True  # summary: QK gain
    config.model.init_std = 0.00699  # summary: 0.5 / sqrt(5120)
    config.model.projection_std = 0.00699  # summary
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 1.339e-3  # summary: adam_lr
    config.optim.beta1 = 0.9062  # summary
    config.optim.beta2 = 0.95  # summary
    config.optim.eps = 3.356e-15  # summary
    config.optim.weight_decay = 0.0  # summary
    config.optim.clip_norm = 1.0  # summary
    config.schedule.name = "linear"  # summary
    config.schedule.warmup_steps = 12_033  # summary: 10 % of the steps
    config.schedule.final_share = 0.0  # summary: min_lr_ratio
    config.train.global_batch = 2048  # summary; x 4096 = 8 M tokens
    config.train.steps = 120_332  # summary
    config.precision.name = "bf16"  # summary
    keep_watch(config)
    return config
