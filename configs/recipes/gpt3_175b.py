"""GPT-3 175B (Brown et al. 2020, arXiv 2005.14165): the first recipe, with which all later ones are compared.

    scalelab train --config=configs/recipes/gpt3_175b.py --workdir=runs/gpt3_175b

3.0e11 tokens. Looked up: Appendix B's paragraph of hyperparameters and Table D.1. The rest of the sizes are Table
2.1's.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 174.6e9, "tokens": 300e9, "flops": 3.14e23}
NOT_REPRODUCED: tuple[str, ...] = (
    "locally banded sparse attention in every other layer (section 2.1; the band's width isn't published): all "
    "layers are dense",
    "data drawn without replacement up to each source's epochs (Table 2.2): give data.mixture",
)


def get_config() -> ConfigDict:
    """Table 2.1, last row, and Appendix B."""
    config = base.get_config()
    config.model = base.gpt2(d_model=12_288, n_layers=96, n_heads=96)  # Table 2.1
    config.model.vocab_size = 50_257  # GPT-2's byte-level BPE (section 2.1)
    config.model.seq_len = 2048  # section 2.1
    config.model.projection_std = (
        0.02  # GPT-2's, "modified initialization" (section 2.1; 0.02 from memory of GPT-2's code)
    )
    config.model.depth_scaled_init = True  # GPT-2 (2019), section 2.3, which section 2.1 takes over
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 0.6e-4  # Table 2.1
    config.optim.beta1 = 0.9  # Appendix B
    config.optim.beta2 = 0.95  # Appendix B
    config.optim.eps = 1e-8  # Appendix B
    config.optim.weight_decay = 0.1  # Appendix B
    config.optim.clip_norm = 1.0  # Appendix B
    config.schedule.name = "cosine"  # Appendix B
    config.schedule.warmup_tokens = 375_000_000  # Appendix B
    config.schedule.final_share = 0.1  # Appendix B
    config.schedule.fall_share = 94_838 / 107_045  # Appendix B: over 260 of 300 billion tokens, then 10 % up to the end
    config.schedule.batch_start = 16  # x 2048 = 32k tokens (Appendix B)
    config.schedule.batch_warmup_tokens = (
        12_000_000_000  # Appendix B: over 4 to 12 billion, by size; 12 for the largest is ours
    )
    config.train.global_batch = 1600  # x 2048 = 3.2 M tokens (Table 2.1)
    config.train.accumulate = 100  # ours: the batch grows by 32k tokens
    config.train.steps = 107_045  # 3.0e11 tokens, batch warm-up included
    config.precision.name = (
        "fp16"  # on V100s, which have no bf16; with loss scaling, from memory of Zhao et al. 2023, Table 5
    )
    keep_watch(config)
    return config
