"""Gemma 2 27B (Gemma team 2024, arXiv 2408.00118): capped logits, norms around branches, a window in every other layer.

    scalelab train --config=configs/recipes/gemma2_27b.py --workdir=runs/gemma2_27b

1.3e13 tokens. The model alone is published: every line on training is ours. Looked up: Tables 1 and 2 and section 2,
and the config of google/gemma_pytorch ("config").
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"non_embedding": 26_047e6, "tokens": 13e12}  # Table 2; section 3.1
NOT_REPRODUCED: tuple[str, ...] = (
    "queries scaled by 1/sqrt(d_model / n_heads), not 1/sqrt(d_head) (config): their matrix can learn it",
    "data, learning rate and batch: none was published",
)


def get_config() -> ConfigDict:
    """Section 2; config."""
    config = base.get_config()
    config.model = base.llama(d_model=4608, n_layers=46, n_heads=32)  # Table 1
    config.model.n_kv_heads = 16  # Table 1
    config.model.d_head = 128  # Table 1
    config.model.d_ff = 36_864  # Table 1, which counts both products: 73,728
    config.model.vocab_size = 256_000  # config; Table 1: 256,128, with room
    config.model.seq_len = 8192  # section 2: context length
    config.model.mlp = "geglu"  # Table 1: GeGLU
    config.model.norm_place = "around"  # section 2: pre-norm and post-norm
    config.model.window = 4096  # section 2: local layers
    config.model.global_every = 2  # section 2: every other layer
    config.model.attention_softcap = 50.0  # section 2
    config.model.logit_softcap = 30.0  # section 2
    config.model.tied_head = True  # config: the embedder decodes
    config.model.logit_scale = "rsqrt_width"  # config: embeddings x sqrt(d_model), here part of them (docs/models.md)
    config.model.init_std = 1.0  # not published: ours, PaLM's (section 5) for this scale
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 3e-4  # not published: ours
    config.optim.weight_decay = 0.1  # not published: ours
    config.schedule.name = "cosine"  # not published: ours
    config.schedule.warmup_steps = 2000  # not published: ours
    config.train.global_batch = 512  # x 8192 = 4 M tokens; not published: ours
    config.train.steps = 3_099_442  # 1.3e13 tokens (section 3.1)
    config.precision.name = "bf16"  # not published: ours
    keep_watch(config)
    return config
