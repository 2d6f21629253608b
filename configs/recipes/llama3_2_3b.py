"""Llama 3.2 3B (Meta 2024, model card): pruned from Llama 3.1 8B and distilled; here its shape, trained anew.

    scalelab train --config=configs/recipes/llama3_2_3b.py --workdir=runs/llama3_2_3b

9.0e12 tokens. Looked up: config.json as others repeat it; parameters from memory of the Hub's totals, tokens from the
model card.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 3_212_749_824, "tokens": 9e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "weights from pruned Llama 3.1 8B, and logits of 8B and 70B as targets (model card): random weights, next tokens",
    "length, LR, batch and schedule of its training, which are not published: Llama 3 8B's here",
)


def get_config() -> ConfigDict:
    """config.json; the model card."""
    config = base.get_config()
    config.model = base.llama(d_model=3072, n_layers=28, n_heads=24)  # config.json
    config.model.n_kv_heads = 8  # config.json: grouped-query attention
    config.model.d_ff = 8192  # config.json
    config.model.vocab_size = 128_256  # config.json
    config.model.seq_len = 8192  # Llama 3's (section 3.4.1); not published for this size
    config.model.rope_theta = 500_000.0  # config.json
    config.model.norm_eps = 1e-5  # config.json
    config.model.tied_head = True  # config.json: tie_word_embeddings
    config.model.remat = "full"  # ours: memory first
    config.data.documents = "mask"  # Llama 3, section 3.2
    config.optim.peak_lr = 3e-4  # not published: Llama 3 8B's (Table 3)
    config.optim.weight_decay = 0.1  # not published: Llama 3's
    config.schedule.name = "cosine"  # not published: Llama 3's
    config.schedule.warmup_steps = 8000  # not published: Llama 3's
    config.schedule.final_share = 0.01  # not published: Llama 3's
    config.train.global_batch = 512  # x 8192 = 4 M tokens; not published: ours
    config.train.steps = 2_145_767  # 9.0e12 tokens (model card: up to 9T)
    config.precision.name = "bf16"  # config.json: torch_dtype
    keep_watch(config)
    return config
