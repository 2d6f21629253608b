"""Llama 3.2 1B (Meta 2024, the model card): pruned from Llama 3.1 8B, trained on larger models' logits.

    scalelab train --config=configs/recipes/llama3_2_1b.py --workdir=runs/llama3_2_1b

9e12 tokens from random weights. Looked up: config.json, the parameters follow from it; tokens on the model card. How
it was trained is not published.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 1_235_814_400, "tokens": 9e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "weights pruned from Llama 3.1 8B at the start (model card)",
    "logits of Llama 3.1 8B and 70B as targets of the training (model card)",
    "long contexts up to 128k tokens, with rope scaled 32 times (config.json)",
)


def get_config() -> ConfigDict:
    """config.json and the model card."""
    config = base.get_config()
    config.model = base.llama(d_model=2048, n_layers=16, n_heads=32)  # config.json
    config.model.n_kv_heads = 8  # config.json
    config.model.d_head = 64  # config.json: head_dim
    config.model.d_ff = 8192  # config.json
    config.model.vocab_size = 128_256  # config.json: Llama 3's tokenizer
    config.model.seq_len = 8192  # config.json: original_max_position_embeddings, before rope was scaled
    config.model.rope_theta = 500_000.0  # config.json
    config.model.norm_eps = 1e-5  # config.json
    config.model.tied_head = True  # config.json: tie_word_embeddings
    config.data.documents = "mask"  # not published: as Llama 3 (section 3.2 of its report)
    config.optim.peak_lr = 3e-4  # not published: ours, Llama 3 8B's
    config.optim.weight_decay = 0.1  # not published: ours, Llama 3's
    config.schedule.name = "cosine"  # not published: ours, Llama 3's
    config.schedule.warmup_steps = 8000  # not published: ours, Llama 3's
    config.schedule.final_share = 0.01  # not published: ours, Llama 3's
    config.train.global_batch = 512  # x 8192 = 4 M tokens; not published: ours
    config.train.steps = 2_145_767  # 9e12 tokens ("up to 9 T", model card)
    config.precision.name = "bf16"  # not published: ours
    keep_watch(config)
    return config
