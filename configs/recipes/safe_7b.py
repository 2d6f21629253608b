"""A safe recipe for pretraining a 7B: the choices that most published runs of this size share.

    scalelab train --config=configs/recipes/safe_7b.py --workdir=runs/safe_7b

6.7e9 parameters, 2.0e12 tokens, 8e22 FLOPs (6ND): about 60,000 H100 hours at 38 % of the bf16 peak. Not run by us; it
is here to be read, planned with and forked. Expect it to be stable; where a value is ours, the comment says so.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch


def get_config() -> ConfigDict:
    """Llama 2 7B (Touvron et al. 2023b, Table 1 and section 2.2) with OLMo 2's stabilisers."""
    config = base.get_config()
    config.model = base.llama(d_model=4096, n_layers=32, n_heads=32)  # Llama 2 7B, config.json
    config.model.d_ff = 11008  # the same
    config.model.vocab_size = 32_000  # Llama 2, section 2.2
    config.model.seq_len = 4096  # Llama 2, Table 1
    config.model.qk_norm = True  # OLMo 2 (2024), section 3: against growing attention logits
    config.model.norm_eps = 1e-5  # Llama 2, params.json
    config.model.remat = "full"  # ours: memory first; loosen it when it fits
    config.optim.peak_lr = 3e-4  # Llama 2, Table 1
    config.optim.eps = 1e-8  # OLMo 2, Table 1; Llama's 1e-5 hides small gradients
    config.optim.weight_decay = 0.1  # Llama 2, section 2.2
    config.optim.clip_norm = 1.0  # Llama 2, section 2.2
    config.schedule.name = "cosine"  # Llama 2, section 2.2
    config.schedule.warmup_steps = 2000  # Llama 2, section 2.2
    config.schedule.final_share = 0.1  # Llama 2, section 2.2
    config.precision.name = "bf16"  # what all of them use
    config.train.global_batch = 1024  # x 4096 = 4.2 M tokens
    config.train.steps = 476_837  # 2.0e12 tokens
    config.train.z_loss = 1e-5  # OLMo 2, section 3 (PaLM: 1e-4)
    keep_watch(config)
    return config
