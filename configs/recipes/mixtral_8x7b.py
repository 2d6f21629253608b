"""Mixtral 8x7B (Jiang et al. 2024, arXiv 2401.04088): Mistral 7B's block with 8 experts, 2 a token.

    scalelab train --config=configs/recipes/mixtral_8x7b.py --workdir=runs/mixtral_8x7b

The model alone is published: every line on training is ours, and so is the number of tokens. Looked up: config.json
through the defaults of transformers' MixtralConfig; 4.67e10 parameters, 1.29e10 of them active.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

# Every parameter by transformers' own class (tests/hf/oracle/counts.json); active: Mistral's website.
PUBLISHED = {"total": 46_702_792_704, "active": 12.9e9}
NOT_REPRODUCED: tuple[str, ...] = ("data, tokens, learning rate, batch and balance: none was published",)


def get_config() -> ConfigDict:
    """Table 1; config.json."""
    config = base.get_config()
    config.model = base.llama(d_model=4096, n_layers=32, n_heads=32)  # Table 1
    config.model.n_kv_heads = 8  # Table 1
    config.model.d_ff = 14_336  # Table 1: hidden_dim
    config.model.block = "experts"  # section 2.1: in every layer
    config.model.n_experts = 8  # Table 1
    config.model.experts_per_token = (
        2  # Table 1; a softmax over the two, which is one over all renormalised (section 2.1)
    )
    config.model.balance_rate = 0.0  # config.json has a loss; the balance of training wasn't published
    config.model.balance_weight = (
        0.02 * 2 / 32  # config.json: router_aux_loss_coef (from memory), of a mean over layers with both experts whole
    )
    config.model.vocab_size = 32_000  # Table 1
    config.model.seq_len = 32_768  # Table 1: context_len
    config.model.rope_theta = 1e6  # config.json
    config.model.norm_eps = 1e-5  # config.json
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 3e-4  # not published: ours, Mistral 7B's here
    config.optim.weight_decay = 0.1  # not published: ours, Mistral 7B's here
    config.schedule.name = "cosine"  # not published: ours, Mistral 7B's here
    config.schedule.warmup_steps = 2000  # not published: ours, Mistral 7B's here
    config.train.global_batch = 128  # x 32,768 = 4 M tokens; not published: ours
    config.train.steps = 476_837  # 2e12 tokens; not published: ours
    config.precision.name = "bf16"  # not published: ours
    keep_watch(config)
    return config
