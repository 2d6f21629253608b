"""DeepSeekMoE 16B (Dai et al. 2024, arXiv 2401.06066): 64 narrow experts and two shared ones.

    scalelab train --config=configs/recipes/deepseek_moe_16b.py --workdir=runs/deepseek_moe_16b

2.0e12 tokens; 1.64e10 parameters, 2.8e9 of them active. Looked up: the defaults of configuration_deepseek.py, the
model's own code; section 5.1's sizes, learning rate, batch and steps as readers quote them; the rest from memory.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

# Every parameter by an equal class of transformers (tests/hf/oracle/counts.json); table 3: 2.8e9 are active.
PUBLISHED = {"total": 16_375_728_128, "active": 2.8e9, "tokens": 2e12}
NOT_REPRODUCED: tuple[str, ...] = ("the balance loss over a batch of one device (section 3.3): over each sequence",)


def get_config() -> ConfigDict:
    """Section 5.1; config.json."""
    config = base.get_config()
    config.model = base.llama(d_model=2048, n_layers=28, n_heads=16)  # section 5.1.2
    config.model.block = (
        "sequential=1,experts=27"  # section 5.1.2: the first layer's balance converges slowly, so it is dense
    )
    config.model.d_ff = 10_944  # config.json: intermediate_size of the dense layer
    config.model.n_experts = 64  # section 5.1.2
    config.model.experts_per_token = 6  # section 5.1.2
    config.model.n_shared_experts = 2  # section 5.1.2
    config.model.d_expert = 1408  # section 5.1.2: a quarter of a standard MLP's
    config.model.router_renormalize = False  # config.json: norm_topk_prob
    config.model.balance_rate = 0.0  # section 3.3: a loss alone balances
    config.model.balance_sequence_weight = 1e-3  # section 5.1.2: the expert-level balance factor (from memory)
    config.model.vocab_size = 102_400  # config.json
    config.model.seq_len = 4096  # section 5.1.2
    config.model.init_std = 0.006  # section 5.1.2 (from memory)
    config.model.projection_std = 0.006  # section 5.1.2 (from memory)
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 4.2e-4  # section 5.1.2
    config.optim.beta1 = 0.9  # section 5.1.2 (from memory)
    config.optim.beta2 = 0.95  # section 5.1.2 (from memory)
    config.optim.weight_decay = 0.1  # section 5.1.2 (from memory)
    config.optim.clip_norm = 1.0  # section 5.1.2 (from memory)
    config.schedule.name = "multi_step"  # section 5.1.2: x 0.316 at 80 % of the steps, and again at 90 % (from memory)
    config.schedule.warmup_steps = 2000  # section 5.1.2 (from memory)
    config.train.global_batch = 4608  # section 5.1.2: 4.5 K sequences
    config.train.steps = 106_449  # section 5.1.2: 2.0e12 tokens
    config.precision.name = "bf16"  # not published: ours
    keep_watch(config)
    return config
