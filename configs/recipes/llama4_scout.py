"""Llama 4 Scout (Meta 2025): the text model, 16 experts, one a token, beside a shared one; no positions every 4th.

    scalelab train --config=configs/recipes/llama4_scout.py --workdir=runs/llama4_scout

4e13 tokens; 1.08e11 parameters, 1.7e10 of them active. Looked up: config.json through the defaults of transformers'
Llama4TextConfig; tokens in the model card. Training is unpublished: those lines are ours.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

# Every parameter by transformers' own class (tests/hf/oracle/counts.json); the model card's 109e9 has images, too.
PUBLISHED = {"total": 107_769_861_120, "active": 17e9, "tokens": 40e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "images, and early fusion with text (model card)",
    "an expert's input times its score (modelling code): its output, as elsewhere",
    "queries and keys of layers with RoPE divided by their RMS, without gains, after it (use_qk_norm)",
    "attention in chunks of 8,192 tokens (attention_chunk_size): sequences here are no longer",
    "attention scaled by the position beyond 8,192 tokens (attn_temperature_tuning), and RoPE stretched (config.json)",
    "learning rates by MetaP, batch and balance: none was published",
)


def get_config() -> ConfigDict:
    """config.json; the model card."""
    config = base.get_config()
    config.model = base.llama(d_model=5120, n_layers=48, n_heads=40)  # config.json
    config.model.n_kv_heads = 8  # config.json
    config.model.d_ff = 16_384  # config.json: intermediate_size_mlp of dense layers, which this model doesn't have
    config.model.block = "experts"  # config.json: interleave_moe_layer_step of 1
    config.model.n_experts = 16  # config.json: num_local_experts
    config.model.experts_per_token = 1  # config.json
    config.model.n_shared_experts = 1  # modelling code
    config.model.d_expert = 8192  # config.json: intermediate_size
    config.model.router_scores = "sigmoid"  # modelling code
    config.model.router_renormalize = False  # modelling code: the weight is the score
    config.model.balance_rate = 1e-3  # not published: ours
    config.model.vocab_size = 202_048  # config.json
    config.model.seq_len = 8192  # config.json: attention_chunk_size; the length of training wasn't published
    config.model.nope_every = 4  # config.json: no_rope_layer_interval
    config.model.rope_theta = 500_000.0  # config.json
    config.model.norm_eps = 1e-5  # config.json
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 3e-4  # not published: ours
    config.optim.weight_decay = 0.1  # not published: ours
    config.schedule.name = "cosine"  # not published: ours
    config.schedule.warmup_steps = 2000  # not published: ours
    config.train.global_batch = 2048  # x 8192 = 17 M tokens; not published: ours
    config.train.steps = 2_384_186  # 4.0e13 tokens (model card)
    config.precision.name = "fp8"  # model card: trained in fp8
    keep_watch(config)
    return config
