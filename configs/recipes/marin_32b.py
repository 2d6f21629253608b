"""Marin 32B (Marin community 2025, marin-32b-retro.md): Qwen 3's block at width 5,120, WSD; spikes before QK-norm.

    scalelab train --config=configs/recipes/marin_32b.py --workdir=runs/marin_32b

6.4e12 tokens, 192,000 steps. The first 80,000 were trained without QK-norm, and ended in spikes that no clipping
held. Looked up: docs/reports/marin-32b-retro.md in marin-community/marin.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED: dict[str, float] = {"tokens": 6.44e12}  # 192,000 steps of 8192 x 4096
NOT_REPRODUCED: tuple[str, ...] = (
    "80,000 steps without QK-norm first, then its weights under it after 1,000 steps of warm-up (phases 1 to 3)",
    "updates clipped at two deviations of the last 128 (Clip-update-norm)",
    "batches of 7,680 sequences from step 18,500 to 21,010",
    "weight decay over the LR during the decay (AdamC, phase 4)",
    "30 % of better data in the cooldown (phase 4): give data.mixture",
)


def get_config() -> ConfigDict:
    """The retrospective's tables."""
    config = base.get_config()
    config.model = base.llama(d_model=5120, n_layers=64, n_heads=40)  # Architecture
    config.model.n_kv_heads = 8  # Architecture
    config.model.d_ff = 27_648  # Architecture
    config.model.vocab_size = 128_256  # Llama 3's tokenizer, as the 8B's
    config.model.seq_len = 4096  # Architecture
    config.model.rope_theta = 500_000.0  # Architecture: Llama 3's settings
    config.model.qk_norm = True  # phase 3: against the spikes
    config.model.remat = "full"  # Architecture: gradient checkpointing
    config.optim.peak_lr = 7e-4  # Optimizer & Schedule
    config.optim.beta1 = 0.9  # Levanter's default (from memory)
    config.optim.beta2 = 0.95  # Levanter's default (from memory)
    config.optim.eps = 1e-8  # Levanter's default (from memory)
    config.optim.weight_decay = 0.05  # Optimizer & Schedule
    config.optim.decay_embeddings = False  # as the 8B's
    config.optim.clip_norm = 0.2  # Optimizer & Schedule
    config.schedule.name = "wsd"  # Optimizer & Schedule
    config.schedule.warmup_steps = 1920  # Optimizer & Schedule: 1 % of the steps
    config.schedule.decay_steps = 32_000  # phase 4: from step 160k to 192k
    config.schedule.decay_shape = "linear"  # phase 4
    config.train.global_batch = 8192  # Data Mix & Batch Schedule
    config.train.steps = 192_000  # phase 4
    config.train.z_loss = 1e-4  # Optimizer & Schedule
    config.train.ema = 0.995  # Optimizer & Schedule
    config.precision.name = "bf16"  # as the 8B's
    keep_watch(config)
    return config
