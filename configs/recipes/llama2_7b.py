"""Llama 2 7B (Touvron et al. 2023b, arXiv 2307.09288): the recipe that most open models of its time adopted.

    scalelab train --config=configs/recipes/llama2_7b.py --workdir=runs/llama2_7b

2.0e12 tokens. Looked up: section 2.2 through excerpts; parameters from the Hub's safetensors totals, which count rope's
64 constants a layer too.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 6_738_415_616, "tokens": 2e12}
NOT_REPRODUCED: tuple[str, ...] = ()


def get_config() -> ConfigDict:
    """Table 1 and section 2.2."""
    config = base.get_config()
    config.model = base.llama(d_model=4096, n_layers=32, n_heads=32)  # config.json of meta-llama/Llama-2-7b-hf
    config.model.d_ff = 11_008  # config.json
    config.model.vocab_size = 32_000  # section 2.2: SentencePiece BPE of 32k
    config.model.seq_len = 4096  # Table 1
    config.model.norm_eps = 1e-5  # released params.json
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 3e-4  # Table 1
    config.optim.beta1 = 0.9  # section 2.2
    config.optim.beta2 = 0.95  # section 2.2
    config.optim.eps = 1e-5  # section 2.2
    config.optim.weight_decay = 0.1  # section 2.2
    config.optim.clip_norm = 1.0  # section 2.2
    config.schedule.name = "cosine"  # section 2.2
    config.schedule.warmup_steps = 2000  # section 2.2
    config.schedule.final_share = 0.1  # section 2.2
    config.train.global_batch = 1024  # x 4096 = 4 M tokens (Table 1's caption)
    config.train.steps = 476_837  # 2.0e12 tokens (Table 1)
    config.precision.name = "bf16"  # not published: ours
    keep_watch(config)
    return config
