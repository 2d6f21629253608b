"""DeepSeek LLM 7B (DeepSeek-AI 2024, arXiv 2401.02954): Llama's block, a small init, LR and batch by own scaling laws.

    scalelab train --config=configs/recipes/deepseek_llm_7b.py --workdir=runs/deepseek_llm_7b

2.0e12 tokens. Looked up: section 2.3's text, Table 2 as a summary repeats it, and config.json.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 6_910_365_696, "tokens": 2e12}
NOT_REPRODUCED: tuple[str, ...] = ()


def get_config() -> ConfigDict:
    """Table 2 and section 2.3."""
    config = base.get_config()
    config.model = base.llama(d_model=4096, n_layers=30, n_heads=32)  # Table 2
    config.model.d_ff = 11_008  # config.json
    config.model.vocab_size = 102_400  # config.json: 100k BPE and room
    config.model.seq_len = 4096  # Table 2
    config.model.init_std = 0.006  # section 2.3
    config.model.projection_std = 0.006  # section 2.3
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 4.2e-4  # Table 2
    config.optim.beta1 = 0.9  # section 2.3
    config.optim.beta2 = 0.95  # section 2.3
    config.optim.weight_decay = 0.1  # section 2.3
    config.optim.clip_norm = 1.0  # section 2.3
    config.schedule.name = (
        "multi_step"  # section 2.3: 31.6 % from 80 % of the tokens on, 10 % from 90 %; a trunk to go on from
    )
    config.schedule.warmup_steps = 2000  # section 2.3
    config.train.global_batch = 2304  # Table 2; x 4096 = 9.4 M tokens
    config.train.steps = 211_928  # 2.0e12 tokens (Table 2)
    config.precision.name = "bf16"  # section 2.4; gradients summed in fp32, as here
    keep_watch(config)
    return config
