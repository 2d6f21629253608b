"""The standard safe recipe of a 7B pretrain: what most published runs of that size agree on, and nothing daring.

    scalelab train --config=configs/recipes/safe_7b.py --workdir=runs/safe_7b

6.7e9 parameters, 2.0e12 tokens, 8e22 FLOPs (6ND): about 60,000 H100 hours at 38 % of the bf16 peak. Not run by us; it is
here to be read, planned with and forked. Expect it to be stable; where a value is ours, the comment says so.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    """Llama 2 7B (Touvron et al. 2023b, Table 1 and section 2.2) with OLMo 2's stabilisers."""
    config = base.get_config()
    config.model = base.llama(d_model=4096, n_layers=32, n_heads=32)
    config.model.d_ff = 11008
    config.model.vocab_size = 32_000
    config.model.seq_len = 4096
    config.model.qk_norm = True  # OLMo 2 (2024), section 3: against growing attention logits
    config.model.norm_eps = 1e-5
    config.model.remat = "full"  # ours: memory first; loosen it when it fits
    config.optim.peak_lr = 3e-4
    config.optim.eps = 1e-8  # OLMo 2, Table 1; Llama's 1e-5 hides small gradients
    config.optim.weight_decay = 0.1
    config.optim.clip_norm = 1.0
    config.schedule.name = "cosine"
    config.schedule.warmup_steps = 2000
    config.schedule.final_share = 0.1
    config.precision.name = "bf16"
    config.train.global_batch = 1024  # x 4096 = 4.2 M tokens
    config.train.steps = 476_837  # 2.0e12 tokens
    config.train.z_loss = 1e-5  # OLMo 2, section 3 (PaLM: 1e-4)
    config.train.steps_per_dispatch = 1
    config.eval.every_steps = 1000
    config.eval.batches = 4
    config.checkpoint.every_steps = 500
    config.checkpoint.keep_every = 10_000
    return config
