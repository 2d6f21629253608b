"""Kimi K2 (Kimi team 2025, arXiv 2507.20534): DeepSeek-V3's block with 384 experts and 64 heads; MuonClip.

    scalelab train --config=configs/recipes/kimi_k2.py --workdir=runs/kimi_k2

1.55e13 tokens; 1.03e12 parameters, 3.3e10 of them active. Looked up: section 2.5's text, config.json as other
programs' tests quote it; the rest from memory.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

# Every parameter by transformers' own class (tests/hf/oracle/counts.json). Table 2 has 1.04e12 and 32.6e9, of
# parts that it doesn't name: experts in all 61 layers would make 1.04e12.
PUBLISHED = {"total": 1_026_408_209_408, "tokens": 15.5e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "QK-clip: weights of heads scaled down where their logits exceed 100 (section 2.1)",
    "400 B tokens at 4k and 60 B at 32k with an LR from 2e-5 to 7e-6, then YaRN (section 2.5): branch off for them",
)


def get_config() -> ConfigDict:
    """Section 2.5; config.json."""
    config = base.get_config()
    config.model = base.llama(d_model=7168, n_layers=61, n_heads=64)  # Table 2
    config.model.block = "sequential=1,experts=60"  # Table 2: one dense layer
    config.model.d_ff = 18_432  # config.json: intermediate_size of the dense layer
    config.model.n_experts = 384  # Table 2
    config.model.experts_per_token = 8  # Table 2
    config.model.n_shared_experts = 1  # Table 2
    config.model.d_expert = 2048  # config.json: moe_intermediate_size
    config.model.router_scores = "sigmoid"  # config.json: scoring_func
    config.model.router_scale = 2.827  # config.json: routed_scaling_factor
    config.model.balance_rate = 1e-3  # config.json: topk_method noaux_tc, a bias; the rate is DeepSeek-V3's
    config.model.balance_sequence_weight = 1e-4  # not published: DeepSeek-V3's
    config.model.d_kv_latent = 512  # config.json: kv_lora_rank
    config.model.d_q_latent = 1536  # config.json: q_lora_rank
    config.model.d_head = 128  # config.json: qk_nope_head_dim
    config.model.d_head_rope = 64  # config.json: qk_rope_head_dim
    config.model.vocab_size = 163_840  # config.json
    config.model.seq_len = 4096  # section 2.5
    config.model.rope_theta = 50_000.0  # config.json
    config.model.remat = "full"  # section 2.4 recomputes some parts; ours: memory first
    config.optim.name = "muon"  # section 2.1: MuonClip without the clip
    config.optim.scale = "rms"  # section 2.1: updates of Adam's RMS
    config.optim.peak_lr = 2e-4  # section 2.5
    config.optim.weight_decay = 0.1  # section 2.5
    config.schedule.name = "wsd"  # section 2.5: constant for 10 T tokens, then a cosine over 5.5 T
    config.schedule.warmup_steps = 500  # section 2.5
    config.schedule.decay_shape = "cosine"  # section 2.5
    config.schedule.decay_steps = 81_956  # section 2.5: 5.5 T tokens
    config.schedule.final_share = 0.1  # section 2.5: to 2e-5
    config.train.global_batch = 16_384  # section 2.5: x 4096 = 67 M tokens
    config.train.steps = 230_968  # section 2.5: 1.55e13 tokens
    config.precision.name = "bf16"  # section 2.4 (from memory)
    keep_watch(config)
    return config
