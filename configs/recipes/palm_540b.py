"""PaLM 540B (Chowdhery et al. 2022, arXiv 2204.02311): parallel blocks, one key head, Adafactor unfactored.

    scalelab train --config=configs/recipes/palm_540b.py --workdir=runs/palm_540b

7.8e11 tokens. Table 1's 540.35e9 leaves the norms' gains out, as the `chinchilla` count does. Looked up: section 5 of
the paper's text; sizes in Table 1.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"chinchilla": 540.35e9, "tokens": 780e9}
NOT_REPRODUCED: tuple[str, ...] = (
    "batches skipped after a spike, from a checkpoint 100 steps before (section 5.1): the guard here skips single "
    "steps",
)


def get_config() -> ConfigDict:
    """Table 1, section 2 and section 5."""
    config = base.get_config()
    config.model = base.llama(d_model=18_432, n_layers=118, n_heads=48)  # Table 1
    config.model.n_kv_heads = 1  # multi-query attention (section 2)
    config.model.d_head = 256  # Table 1
    config.model.d_ff = 4 * 18_432  # section 2
    config.model.vocab_size = 256_000  # SentencePiece (section 2)
    config.model.seq_len = 2048  # section 5
    config.model.block = "parallel"  # section 2: 15 % faster at large scale
    config.model.norm = "layernorm_nobias"  # section 2: no biases in kernels or layer norms, for stability
    config.model.tied_head = True  # section 2: shared input-output embeddings
    config.model.init_std = 1.0  # section 5: E ~ N(0, 1), since no norm is applied to the embeddings
    config.model.logit_scale = "rsqrt_width"  # section 5: logits / sqrt(n), because the embedding is shared
    config.model.remat = "full"  # section 4 rematerialises (57.8 % of the peak with it, 46.2 % without)
    config.optim.name = "adafactor"  # section 5
    config.optim.factored = False  # section 5: "without factorization", Adam with parameter scaling
    config.optim.averaged = True  # section 5: beta1 > 0
    config.optim.beta1 = 0.9  # section 5; beta2 = 1 - k^-0.8 is Adafactor's own
    config.optim.peak_lr = 1e-2  # section 5
    config.optim.weight_decay = 1.0  # section 5: decay of lr^2
    config.optim.clip_norm = 1.0  # section 5
    config.schedule.wd_shape = "lr2"  # section 5: a dynamic weight decay
    config.schedule.name = "inverse_sqrt"  # section 5: 1/sqrt(k)
    config.schedule.hold_steps = 10_000  # section 5: constant up to there
    config.schedule.warmup_steps = 0  # section 5: none
    config.schedule.batch_stages = "512; 50000: 1024; 115000: 2048"  # section 5: 1 M, 2 M, 4 M tokens
    config.train.global_batch = 2048  # x 2048 = 4 M tokens (section 5)
    config.train.accumulate = 4  # ours: the batch grows by quarters
    config.train.steps = 255_000  # section 5; 7.8e11 tokens
    config.train.z_loss = 1e-4  # section 5
    config.precision.name = "bf16"  # section 4 (from memory)
    keep_watch(config)
    return config
