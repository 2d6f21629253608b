"""OLMo 3 32B, stage 1 (OLMo team 2025): OLMo 2's block with a window in three of four layers; all public.

    scalelab train --config=configs/recipes/olmo3_32b.py --workdir=runs/olmo3_32b

5.5e12 tokens. Looked up: OLMo-3-1025-32B-pretrain.py in allenai/OLMo-core ("script" below), its
TransformerConfig.olmo3_32B ("class"), and sizes and tokens on the model card; parameters from memory of the Hub's
totals.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 32_233_522_176, "tokens": 5.5e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "initialisation of OLMo-core: each layer's own, cut off at three standard deviations",
    "sequences with a repeated n-gram of up to 13 tokens left out of the loss (script: instance_filter)",
    "stage 2 on 100 B tokens of better data, and stage 3 on long documents with YaRN (model card): branch off for it",
)


def get_config() -> ConfigDict:
    """The script, line by line."""
    config = base.get_config()
    config.model = base.llama(d_model=5120, n_layers=64, n_heads=40)  # model card
    config.model.n_kv_heads = 8  # model card
    config.model.d_ff = 27_648  # class: OLMo 2's
    config.model.vocab_size = 100_278  # config.json; the script pads it to 100,352
    config.model.seq_len = 8192  # script
    config.model.rope_theta = 500_000.0  # class: OLMo 2's
    config.model.window = 4096  # class: sliding_window
    config.model.global_every = 4  # class: pattern 4096, 4096, 4096, -1
    config.model.norm_place = "after"  # class: OLMo 2's
    config.model.qk_norm = True  # class: OLMo 2's
    config.model.qk_norm_over = "projection"  # class: one RMSNorm over all heads; its gains are in N
    config.model.projection_std = 0.02  # class: init_std
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 6e-4  # script
    config.optim.beta1 = 0.9  # script
    config.optim.beta2 = 0.95  # script
    config.optim.eps = 1e-8  # script: the optimizer's default
    config.optim.weight_decay = 0.1  # script
    config.optim.decay_embeddings = False  # script: group_overrides
    config.optim.decay_vectors = True  # script: only embeddings are left out
    config.optim.clip_norm = 1.0  # script: max_grad_norm
    config.schedule.name = "cosine"  # script
    config.schedule.warmup_steps = 2000  # script
    config.schedule.final_share = 0.1  # script: the schedule's default, alpha_f
    config.schedule.fall_share = 5.93e12 / (
        655_651 * 1024 * 8192
    )  # script: one epoch, 5.93e12 tokens on the 7B's card; ended at 5.5e12
    config.train.global_batch = 1024  # script; x 8192 = 8 M tokens
    config.train.steps = 655_651  # 5.5e12 tokens (model card)
    config.train.z_loss = 1e-5  # script: z_loss_multiplier
    config.precision.name = "bf16"  # script: param_dtype
    keep_watch(config)
    return config
