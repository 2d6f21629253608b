"""gpt-oss-20b (OpenAI 2025, arXiv 2508.10925): 32 experts, 4 a token; a window of 128 in every other layer.

    scalelab train --config=configs/recipes/gpt_oss_20b.py --workdir=runs/gpt_oss_20b

The model alone is published: every line on training is ours, and so is the number of tokens. Looked up: config.json
through transformers' GptOssConfig; 2.09e10 parameters, 4.2e9 of them active.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

# The model card's table 1, which counts biases and sinks, too; by part: tests/hf/oracle/counts.json.
PUBLISHED = {"total": 20.9e9, "active": 3.6e9}
ACTIVE_WITHOUT = ("embed",)
NOT_REPRODUCED: tuple[str, ...] = (
    "attention sinks, a learned logit of each head in the softmax (section 2.2)",
    "biases of experts, router and attention's output (config.json): only queries, keys and values have some",
    "SwiGLU clamped to 7, with a residual and an exponent of 1.702 (section 2.1): plain SwiGLU",
    "RoPE stretched by YaRN from 4,096 to 131,072 tokens (section 2.2): 4,096",
    "weights of the experts in MXFP4 after training (section 2.1)",
    "data, tokens, learning rate, batch and balance: none was published",
)


def get_config() -> ConfigDict:
    """Sections 2.1 and 2.2; config.json."""
    config = base.get_config()
    config.model = base.llama(d_model=2880, n_layers=24, n_heads=64)  # config.json
    config.model.n_kv_heads = 8  # config.json
    config.model.d_head = 64  # config.json
    config.model.d_ff = 2880  # config.json: intermediate_size
    config.model.block = "experts"  # section 2.1: in every layer
    config.model.n_experts = 32  # section 2.1
    config.model.experts_per_token = 4  # section 2.1; a softmax over the four, which is one over all renormalised
    config.model.balance_rate = 1e-3  # not published: ours
    config.model.qkv_bias = True  # config.json: attention_bias
    config.model.vocab_size = 201_088  # config.json
    config.model.seq_len = 4096  # config.json: original_max_position_embeddings
    config.model.window = 128  # config.json: sliding_window
    config.model.global_every = 2  # config.json: layer_types
    config.model.rope_theta = 150_000.0  # config.json
    config.model.norm_eps = 1e-5  # config.json
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 3e-4  # not published: ours
    config.optim.weight_decay = 0.1  # not published: ours
    config.schedule.name = "cosine"  # not published: ours
    config.schedule.warmup_steps = 2000  # not published: ours
    config.train.global_batch = 1024  # x 4096 = 4 M tokens; not published: ours
    config.train.steps = 476_837  # 2e12 tokens; not published: ours
    config.precision.name = "bf16"  # not published: ours
    keep_watch(config)
    return config
