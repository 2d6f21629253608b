"""DeepSeek-V3 (DeepSeek-AI 2024, arXiv 2412.19437): 256 experts and a shared one, latent attention, fp8 in tiles.

    scalelab train --config=configs/recipes/deepseek_v3.py --workdir=runs/deepseek_v3

1.43e13 tokens; 6.71e11 parameters, 3.7e10 of them active. Looked up: section 4.2's text, config.json through the
defaults of transformers' DeepseekV3Config, README_WEIGHTS.md; the rest from memory.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

# Every parameter by transformers' own class (tests/hf/oracle/counts.json); active by README_WEIGHTS.md.
PUBLISHED = {"total": 671_026_404_352, "active": 36.6e9, "tokens": 14.8e12}
ACTIVE_WITHOUT = ("embed",)
NOT_REPRODUCED: tuple[str, ...] = (
    "multi-token prediction (section 2.2): one more block, 11.5e9 parameters of its own (README_WEIGHTS.md)",
    "the last 500 B tokens at constant LR, 2.2e-5 and 7.3e-6, and with the experts' bias at rest (section 4.2): "
    "the run ends with the cosine",
    "embedding, head, norms and attention in higher precision than fp8 (section 3.3): all projections of the blocks "
    "take tiles of fp8",
    "bf16 moments of AdamW (section 3.3.3): fp32",
)


def get_config() -> ConfigDict:
    """Section 4.2; config.json."""
    config = base.get_config()
    config.model = base.llama(d_model=7168, n_layers=61, n_heads=128)  # section 4.2
    config.model.block = "sequential=3,experts=58"  # section 4.2: all but the first three layers have experts
    config.model.d_ff = 18_432  # config.json: intermediate_size of the dense layers
    config.model.n_experts = 256  # section 4.2: routed experts
    config.model.experts_per_token = 8  # section 4.2
    config.model.n_shared_experts = 1  # section 4.2
    config.model.d_expert = 2048  # section 4.2
    config.model.router_scores = "sigmoid"  # section 2.1.2
    config.model.router_scale = 2.5  # config.json: routed_scaling_factor
    config.model.router_groups = 8  # section 4.2: experts of 8 nodes; config.json: n_group
    config.model.router_groups_per_token = 4  # section 4.2: a token goes to 4 nodes at most; config.json: topk_group
    config.model.balance_rate = 1e-3  # section 4.2: gamma, for the first 14.3 T tokens
    config.model.balance_sequence_weight = 1e-4  # section 4.2: alpha
    config.model.d_kv_latent = 512  # section 4.2
    config.model.d_q_latent = 1536  # section 4.2
    config.model.d_head = 128  # section 4.2: the part without rotation
    config.model.d_head_rope = 64  # section 4.2
    config.model.vocab_size = 129_280  # config.json
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
