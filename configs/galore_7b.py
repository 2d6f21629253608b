"""LLaMA 7B on a card of 24 GB: 8-bit GaLore, updated layer by layer, weights in bf16 (Zhao et al. 2024, 2403.03507).

    scalelab plan --config=galore_7b --hardware=rtx4090

The paper claims pre-training of 7 G parameters on an RTX 4090. The authors' scripts/single_gpu/llama_7b.sh says
22.72 G, with 256 tokens a sequence (their default) and nothing recomputed. Here a sequence has 2,048 tokens, every
block is computed twice more, and weights are rounded stochastically, not to nearest. Sizes are those of their
configs/llama_7b.json, the optimizer's values those of that script. checks/results/memory.md has its memory as
planned and as compiled. Not run by us.
"""

from ml_collections import ConfigDict

from scalelab.configs import base


def get_config() -> ConfigDict:
    """One sequence a step; what decides memory is the paper's."""
    config = base.get_config()
    config.model = base.llama(d_model=4096, n_layers=32, n_heads=32)
    config.model.d_ff = 11_008
    config.model.vocab_size = 32_000
    config.model.seq_len = 2048
    config.model.remat = "full"
    config.optim.name = "galore8bit"
    config.optim.peak_lr = 0.005
    config.optim.rank = 1024
    config.optim.every = 500
    config.optim.low_rank_scale = 0.25
    config.optim.weight_decay = 0.0
    config.schedule.warmup_steps = 15_000
    config.train.steps = 150_000
    config.train.global_batch = 1
    config.train.updates = "per_layer"
    config.precision.name = "bf16_stochastic"
    return config
