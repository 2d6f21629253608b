"""Chinchilla 70B (Hoffmann et al. 2022, arXiv 2203.15556): Gopher's compute, a quarter of its size, 4 times its tokens.

    scalelab train --config=configs/recipes/chinchilla_70b.py --workdir=runs/chinchilla_70b

1.4e12 tokens, 20 a parameter. Looked up: Table 4 with its caption and footnote.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 70e9, "tokens": 1.4e12, "flops": 5.76e23}
NOT_REPRODUCED: tuple[str, ...] = (
    "sharded SentencePiece without NFKC normalisation: give your own tokenizer to `scalelab prepare`",
)


def get_config() -> ConfigDict:
    """Table 4 and section 4.1."""
    config = base.get_config()
    config.model = base.chinchilla(d_model=8192, n_layers=80, n_heads=64)  # Table 4
    config.model.d_ff = 4 * 8192  # Table A9: feed-forward of 4 x d_model
    config.model.vocab_size = 32_000  # section 4.1, as Gopher
    config.model.seq_len = 2048  # as Gopher
    config.model.remat = "full"  # ours: memory first
    config.optim.name = "adamw"  # section 4.1: AdamW rather than Gopher's Adam, lower loss and better after finetuning
    config.optim.peak_lr = 1e-4  # Table 4
    config.optim.weight_decay = 0.1  # not published in Table 4: ours
    config.schedule.name = "cosine"  # section 4.1
    config.schedule.warmup_steps = 1500  # as Gopher; not published
    config.schedule.final_share = 0.1  # Appendix B: 10x over a cycle as long as the run
    config.schedule.batch_stages = "768; 445048: 1536"  # Table 4: 1.5 M to 3 M tokens, doubled midway
    config.train.global_batch = 1536  # x 2048 = 3 M tokens (Table 4)
    config.train.accumulate = 2  # ours: the batch doubles once
    config.train.steps = 667_572  # 1.4e12 tokens
    config.precision.name = "bf16"  # section 4.1: bf16 forward and backward, fp32 copy in the optimizer
    keep_watch(config)
    return config
