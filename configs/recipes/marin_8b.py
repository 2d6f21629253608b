"""Marin 8B (Marin community 2025, marin-8b-retro.md): Llama 3.1 8B's shape, WSD, growing batches.

    scalelab train --config=configs/recipes/marin_8b.py --workdir=runs/marin_8b

1.27e13 tokens in five phases that nobody had planned; here what they have in common, as one run. Looked up:
docs/reports/marin-8b-retro.md in marin-community/marin.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 8_030_261_248, "tokens": 12.75e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "a peak of 1e-3 up to 2.77 T tokens, with short decays every 10k or 20k steps (WSD-S, phase 1)",
    "a first cooldown to 1.7e-4 from 3.78 to 4.78 T tokens, and 2,000 steps back up (phases 3 and 4)",
    "data mixture changed with each phase: give data.mixture",
    "no z-loss before the last cooldown; Llama 2's rope before 2.77 T tokens",
)


def get_config() -> ConfigDict:
    """The retrospective, section by section."""
    config = base.get_config()
    config.model = base.llama(d_model=4096, n_layers=32, n_heads=32)  # Architecture
    config.model.n_kv_heads = 8  # Architecture
    config.model.d_ff = 14_336  # Architecture
    config.model.vocab_size = 128_256  # Tokenizer: Llama 3's
    config.model.seq_len = 4096  # Architecture
    config.model.rope_theta = 500_000.0  # phase 2: Llama 3's, after a start with Llama 2's
    config.model.norm_eps = 1e-5  # Llama 3.1 8B's, whose settings were taken
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 1.7e-3  # phases 2 and 4: 1e-3 times the root of 3, for three times the batch
    config.optim.beta1 = 0.9  # Levanter's default (from memory)
    config.optim.beta2 = 0.95  # Levanter's default (from memory)
    config.optim.eps = 1e-8  # Levanter's default (from memory)
    config.optim.weight_decay = 0.05  # Other hyperparameters: as in DCLM's Table 12
    config.optim.decay_embeddings = False  # Architecture: input embeddings and norms have none
    config.schedule.name = "wsd"  # phase 2
    config.schedule.warmup_steps = 2000  # not in the text: ours
    config.schedule.decay_steps = 98_300  # phase 5: the last 1.65 T tokens
    config.schedule.decay_shape = "linear"  # phases 3 and 5
    config.schedule.final_share = 0.01  # phase 5: down to 1.7e-5
    config.schedule.batch_stages = (
        "1024; 660430: 3072; 1322450: 4096"  # Batch schedule: 4, 12, 16 Mi tokens, from 2.77 and 11.1 T tokens on
    )
    config.train.accumulate = 4  # ours: the first batch is a quarter of the last
    config.train.global_batch = 4096  # phase 5: 16 Mi tokens
    config.train.steps = 1_420_750  # 12.75 T tokens in all (Training phases)
    config.train.z_loss = 1e-4  # phase 5; in every run of theirs since
    config.train.ema = 0.995  # phase 2
    config.precision.name = "bf16"  # Architecture: parameters and states in float32
    keep_watch(config)
    return config
