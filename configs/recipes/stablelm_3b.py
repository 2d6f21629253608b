"""StableLM-3B-4E1T (Stability AI 2023): LayerNorms, RoPE on a quarter of each head, four epochs of 1 T tokens.

    scalelab train --config=configs/recipes/stablelm_3b.py --workdir=runs/stablelm_3b

4.0e12 tokens. Looked up: configs/stablelm-3b-4e1t.yml in Stability-AI/StableLM ("yml"). The batch, the vocabulary and
the published number of parameters are the model card's (from memory); the parameters follow from the yml.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 2_795_443_200, "tokens": 4e12}
NOT_REPRODUCED: tuple[str, ...] = ("the data, of which four epochs were trained: give data.mixture",)


def get_config() -> ConfigDict:
    """The yml, line by line."""
    config = base.get_config()
    config.model = base.llama(d_model=2560, n_layers=32, n_heads=32)  # yml
    config.model.d_ff = 6912  # yml: 8/3 of the width, up to a multiple of 256
    config.model.vocab_size = 50_304  # config.json: GPT-NeoX' 50,257 and room
    config.model.seq_len = 4096  # yml
    config.model.norm = "layernorm"  # yml: layernorm, use_bias_in_norms
    config.model.norm_eps = 1e-5  # config.json
    config.model.rope_share = 0.25  # yml: rotary_pct
    config.model.projection_std = 0.02  # GPT-NeoX' init_method_std (from memory)
    config.model.depth_scaled_init = True  # yml: output_layer_init_method scaled_normal
    config.model.remat = "full"  # yml: checkpoint-activations
    config.optim.peak_lr = 3.2e-4  # yml
    config.optim.beta1 = 0.9  # yml
    config.optim.beta2 = 0.95  # yml
    config.optim.eps = 1e-6  # yml
    config.optim.weight_decay = 0.1  # yml
    config.optim.clip_norm = 1.0  # yml
    config.schedule.name = "cosine"  # yml
    config.schedule.warmup_steps = 4775  # yml: a share of 0.005
    config.schedule.final_share = 0.04  # yml: min_lr, 4 % of lr
    config.train.global_batch = 1024  # yml: 955,000 steps are 4.0 T tokens; x 4096 = 4 M tokens
    config.train.steps = 955_000  # yml; 4.0e12 tokens
    config.precision.name = "bf16"  # yml
    keep_watch(config)
    return config
