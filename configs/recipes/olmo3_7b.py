"""OLMo 3 7B, stage 1 (OLMo team 2025, arXiv 2512.13961): OLMo 2's block, a window in three of four layers.

    scalelab train --config=configs/recipes/olmo3_7b.py --workdir=runs/olmo3_7b

5.93e12 tokens. Looked up: OLMo-3-1025-7B-pretrain-1.py and its second part in allenai/OLMo-core ("script"), README.md
beside them, and olmo_core/nn/transformer/config.py ("model code").
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 7_298_617_344, "tokens": 5.93e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "the schedule prolonged on the way: a cosine of 5 T tokens up to step 597,046, then one of 7 T (pretrain-2.py); "
    "here one of 5.93 T from the start",
    "stages 2 and 3: 100 B tokens of better data, then 50 B at 65k tokens with YaRN (README.md): branch off for them",
    "normal initialisation cut off at three standard deviations (olmo2's init_method, from memory)",
    "steps skipped by the size of their loss or gradient (script: SkipStepAdamW): `guard` is ours",
)


def get_config() -> ConfigDict:
    """The official script, line by line."""
    config = base.get_config()
    config.model = base.llama(d_model=4096, n_layers=32, n_heads=32)  # model code: olmo3_7B, as olmo2_7B
    config.model.d_ff = 11_008  # model code: olmo2_7B
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
    config.optim.peak_lr = 3e-4  # script
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
    config.train.global_batch = 512  # script: 8192 x 512 = 4 M tokens
    config.train.steps = 1_413_822  # 5.93e12 tokens (README.md)
    config.train.z_loss = 1e-5  # script
    config.precision.name = "bf16"  # script: param_dtype bfloat16, sums in float32
    keep_watch(config)
    return config
