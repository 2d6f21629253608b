"""OLMo 3 32B, stage 1 (OLMo team 2025, arXiv 2512.13961): OLMo 2's block, a window in three of four layers.

    scalelab train --config=configs/recipes/olmo3_32b.py --workdir=runs/olmo3_32b

5.5e12 tokens. Looked up: OLMo-3-1025-32B-pretrain.py of allenai/OLMo-core ("script"), README.md beside it, and
olmo_core/nn/transformer/config.py ("model code").
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 32_234_279_936, "tokens": 5.5e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "sequences with a repeated n-gram of up to 13 tokens left out of the loss (script: instance_filter_config)",
    "stages 2 and 3: 100 B tokens of better data, then 50 B at 65k tokens with YaRN (README.md): branch off for them",
    "normal initialisation cut off at three standard deviations (olmo2's init_method, from memory)",
    "steps skipped by the size of their loss or gradient (script: SkipStepAdamW): `guard` is ours",
)


def get_config() -> ConfigDict:
    """The official script, line by line."""
    config = base.get_config()
    config.model = base.llama(d_model=5120, n_layers=64, n_heads=40)  # README.md; model code: olmo3_32B, as olmo2_32B
    config.model.n_kv_heads = 8  # model code: olmo2_32B
    config.model.d_ff = 27_648  # model code: olmo2_32B
    config.model.vocab_size = 100_352  # script: the tokenizer's 100,278, padded to a multiple of 128
    config.model.seq_len = 8192  # script
    config.model.window = 4096  # model code: pattern [4096, 4096, 4096, -1]
    config.model.global_every = 4  # model code: the same pattern; the last layer is one of them
    config.model.rope_theta = 500_000.0  # model code: OLMo 2's
    config.model.norm_place = "after"  # model code: OLMo 2's
    config.model.qk_norm = True  # model code: OLMo 2's
    config.model.qk_norm_over = "projection"  # model code: OLMo 2's; one RMSNorm over all heads
    config.model.projection_std = 0.02  # model code: OLMo 2's (from memory)
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 6e-4  # script
    config.optim.beta1 = 0.9  # script
    config.optim.beta2 = 0.95  # script
    config.optim.eps = 1e-8  # AdamW's default there
    config.optim.weight_decay = 0.1  # script
    config.optim.decay_embeddings = False  # script: weight_decay 0 for embeddings
    config.optim.decay_vectors = True  # script: no other group is left out
    config.optim.clip_norm = 1.0  # script: max_grad_norm
    config.schedule.name = "cosine"  # script: CosWithWarmup
    config.schedule.warmup_steps = 2000  # script
    config.schedule.final_share = 0.1  # CosWithWarmup's default, alpha_f
    config.train.global_batch = 1024  # script: 8 M tokens
    config.train.steps = 655_651  # 5.5e12 tokens (README.md)
    config.train.z_loss = 1e-5  # script
    config.precision.name = "bf16"  # script: param_dtype bfloat16, sums in float32
    keep_watch(config)
    return config
