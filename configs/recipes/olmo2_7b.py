"""OLMo 2 7B, stage 1 (OLMo team 2024, arXiv 2501.00656): norms after, QK-norm over the projection, z-loss; all public.

    scalelab train --config=configs/recipes/olmo2_7b.py --workdir=runs/olmo2_7b

3.9e12 tokens of a cosine planned for 5e12. Looked up: configs/official-1124/OLMo2-7B-stage1.yaml in allenai/OLMo
("yaml" below).
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 7_298_617_344, "tokens": 3.9e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "normal initialisation cut off at three standard deviations (yaml: init_cutoff_factor)",
    "sequences with a repeated n-gram of up to 13 tokens left out of the loss (yaml: instance_filter)",
    "stage 2: LR linearly to 0 over 50 B tokens of better data, three times, averaged (section 2.4): branch off for it",
)


def get_config() -> ConfigDict:
    """The yaml, line by line."""
    config = base.get_config()
    config.model = base.llama(d_model=4096, n_layers=32, n_heads=32)  # yaml
    config.model.d_ff = 11_008  # yaml: mlp_hidden_size 22016, gate and up together
    config.model.vocab_size = 100_352  # yaml: embedding_size; 100,278 tokens and padding
    config.model.seq_len = 4096  # yaml
    config.model.rope_theta = 500_000.0  # yaml
    config.model.norm_place = "after"  # yaml: norm_after; against spikes (section 3)
    config.model.qk_norm = True  # yaml: attention_layer_norm; against growing attention logits (section 3)
    config.model.qk_norm_over = "projection"  # modelling code: one RMSNorm over all heads; its gains are in N
    config.model.projection_std = 0.02  # yaml: init_fn normal, init_std 0.02, no scaling with depth (section 3)
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 3e-4  # yaml
    config.optim.beta1 = 0.9  # yaml
    config.optim.beta2 = 0.95  # yaml
    config.optim.eps = 1e-8  # yaml; 1e-5 in OLMo 1 was worse (section 3)
    config.optim.weight_decay = 0.1  # yaml
    config.optim.decay_embeddings = False  # yaml: decay_embeddings false; so embeddings keep their norms (section 3)
    config.optim.decay_vectors = True  # yaml: decay_norm_and_bias true
    config.optim.clip_norm = 1.0  # yaml
    config.schedule.name = "cosine"  # yaml
    config.schedule.warmup_tokens = 8_388_608_000  # yaml: t_warmup; 2000 steps
    config.schedule.final_share = 0.1  # yaml: alpha_f
    config.schedule.fall_share = 5e12 / (928_646 * 1024 * 4096)  # yaml: t_max 5e12 tokens, beyond the run's end
    config.train.global_batch = 1024  # yaml; x 4096 = 4 M tokens
    config.train.steps = (
        928_646  # 3.9e12 tokens: one epoch (yaml: max_duration); the step from memory of the checkpoint's name
    )
    config.train.z_loss = 1e-5  # yaml: auxiliary_loss_multiplier
    config.precision.name = "bf16"  # yaml: amp_bf16
    keep_watch(config)
    return config
