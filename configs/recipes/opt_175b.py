"""OPT-175B (Zhang et al. 2022, arXiv 2205.01068): GPT-3's shape with ReLU, its logbook public.

    scalelab train --config=configs/recipes/opt_175b.py --workdir=runs/opt_175b

3.0e11 tokens, on 1.8e11 of data. Looked up: section 2.1 and 2.2 through excerpts, the chronicles in
facebookresearch/metaseq.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 175e9, "tokens": 300e9}
NOT_REPRODUCED: tuple[str, ...] = (
    "dropout of 0.1, none on embeddings (section 2.2)",
    "learning rate lowered by hand after divergences (section 2.5 and the logbook), clipping lowered from 1.0 to "
    "0.3 early on",
    "two more rows of learned positions, which its code adds (2 x 12,288 parameters)",
)


def get_config() -> ConfigDict:
    """Table 1, last row, and section 2.2."""
    config = base.get_config()
    config.model = base.gpt2(d_model=12_288, n_layers=96, n_heads=96)  # Table 1
    config.model.mlp = "relu"  # section 2.1
    config.model.vocab_size = 50_272  # GPT-2's BPE, padded (from memory of the released configs)
    config.model.seq_len = 2048  # section 2.1
    config.model.init_std = 0.006  # section 2.1: normal, std 0.006
    config.model.projection_std = 0.006  # section 2.1
    config.model.depth_scaled_init = True  # section 2.1: output layers x 1/sqrt(2L)
    config.model.remat = "full"  # metaseq checkpoints activations (from memory)
    config.optim.peak_lr = 1.2e-4  # Table 1
    config.optim.beta1 = 0.9  # section 2.2
    config.optim.beta2 = 0.95  # section 2.2
    config.optim.weight_decay = 0.1  # section 2.2
    config.optim.clip_norm = 1.0  # section 2.2
    config.schedule.name = "linear"  # section 2.2
    config.schedule.warmup_steps = 2000  # section 2.2
    config.schedule.final_share = 0.1  # section 2.2: down to 10 % over 300B tokens
    config.train.global_batch = 1024  # x 2048 = 2 M tokens (Table 1)
    config.train.steps = 143_051  # 3.0e11 tokens
    config.precision.name = "fp16"  # section 2.3: fp16 weights, Adam's state in fp32, dynamic loss scaling
    keep_watch(config)
    return config
