"""OLMo 3 7B, stage 1 (OLMo team 2025): OLMo 2's block with a window in three of four layers; all public.

    scalelab train --config=configs/recipes/olmo3_7b.py --workdir=runs/olmo3_7b

5.93e12 tokens. Looked up: OLMo-3-1025-7B-pretrain-2.py in allenai/OLMo-core ("script" below), its
TransformerConfig.olmo3_7B ("class"), and sizes and tokens on the model card; parameters from memory of the Hub's
totals.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 7_298_011_136, "tokens": 5.93e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "initialisation of OLMo-core: each layer's own, cut off at three standard deviations",
    "sequences with repeated n-grams left out of the loss in the first part (its script: instance_filter)",
    "a cosine for 5e12 tokens up to its middle, then one stretched to 7e12 (script): here one cosine for 7e12",
    "stage 2 on 100 B tokens of better data, and stage 3 on long documents with YaRN (model card): branch off for it",
)


def get_config() -> ConfigDict:
    """The script, line by line."""
    config = base.get_config()
    config.model = base.llama(d_model=4096, n_layers=32, n_heads=32)  # model card
    config.model.d_ff = 11_008  # class: OLMo 2's
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
    config.optim.peak_lr = 3e-4  # script
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
    config.schedule.fall_share = 7e12 / (
        1_413_814 * 512 * 8192
    )  # script: max_duration 7e12 tokens, beyond the run's end
    config.train.global_batch = 512  # script; x 8192 = 4 M tokens
    config.train.steps = 1_413_814  # 5.93e12 tokens (model card)
    config.train.z_loss = 1e-5  # script: z_loss_multiplier
    config.precision.name = "bf16"  # script: param_dtype
    keep_watch(config)
    return config
