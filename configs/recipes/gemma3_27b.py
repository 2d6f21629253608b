"""Gemma 3 27B (Gemma team 2025, arXiv 2503.19786), the text model: as the 12B, 62 layers of width 5,376.

    scalelab train --config=configs/recipes/gemma3_27b.py --workdir=runs/gemma3_27b

1.4e13 tokens. The model alone is published: every line on training is ours. Looked up: Table 1 and section 2, and
the config of google/gemma_pytorch ("config").
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"non_embedding": 25_600e6, "tokens": 14e12}  # Table 1; section 2.2
NOT_REPRODUCED: tuple[str, ...] = (
    "knowledge distillation: targets sampled from a teacher, 256 logits a token (section 2.2); here the next token",
    "128k tokens at the end, with the global layers' RoPE stretched by 8 (section 2); the vision encoder",
    "queries scaled by 1/sqrt(d_model / n_heads), not 1/sqrt(d_head) (config): the gains of QK-norm can learn it",
    "data, learning rate and batch: none was published",
)


def get_config() -> ConfigDict:
    """Section 2; config."""
    config = base.get_config()
    config.model = base.llama(d_model=5376, n_layers=62, n_heads=32)  # config
    config.model.n_kv_heads = 16  # config
    config.model.d_head = 128  # config
    config.model.d_ff = 21_504  # config
    config.model.vocab_size = 262_144  # section 2.2
    config.model.seq_len = 32_768  # section 2: of pre-training
    config.model.mlp = "geglu"  # config: Gemma's
    config.model.norm_place = "around"  # section 2: pre-norm and post-norm
    config.model.qk_norm = True  # section 2: in the place of Gemma 2's caps
    config.model.window = 1024  # config: sliding_window_size
    config.model.global_every = 6  # section 2: five local layers for each global one
    config.model.rope_theta = 1_000_000.0  # section 2: of global layers
    config.model.rope_local_theta = 10_000.0  # section 2: of local layers
    config.model.tied_head = True  # config: the embedder decodes
    config.model.logit_scale = "rsqrt_width"  # config: embeddings x sqrt(d_model), here part of them (docs/models.md)
    config.model.init_std = 1.0  # not published: ours, PaLM's (section 5) for this scale
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 3e-4  # not published: ours
    config.optim.weight_decay = 0.1  # not published: ours
    config.schedule.name = "cosine"  # not published: ours
    config.schedule.warmup_steps = 2000  # not published: ours
    config.train.global_batch = 128  # x 32,768 = 4 M tokens; not published: ours
    config.train.steps = 3_337_860  # 1.4e13 tokens (section 2.2)
    config.precision.name = "bf16"  # not published: ours
    keep_watch(config)
    return config
