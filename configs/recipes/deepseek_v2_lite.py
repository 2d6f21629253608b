"""DeepSeek-V2-Lite (DeepSeek-AI 2024, arXiv 2405.04434): latent attention and 64 experts in 16e9 parameters.

    scalelab train --config=configs/recipes/deepseek_v2_lite.py --workdir=runs/deepseek_v2_lite

5.7e12 tokens; 1.57e10 parameters, 2.7e9 of them active. Looked up: README.md (sections 6 and above) and config.json of
deepseek-ai/DeepSeek-V2-Lite, as inference/configs/config_16B.json of deepseek-ai/DeepSeek-V3 has it.
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

# Every parameter by transformers' own class (tests/hf/oracle/counts.json); README.md: active, cut off after a digit.
PUBLISHED = {"total": 15_706_484_224, "active": 2.4e9, "tokens": 5.7e12}
ACTIVE_WITHOUT = ("embed",)
NOT_REPRODUCED: tuple[str, ...] = ("the extension to 32k tokens by YaRN (appendix B): branch off for it",)


def get_config() -> ConfigDict:
    """README.md, section 6; config.json."""
    config = base.get_config()
    config.model = base.llama(d_model=2048, n_layers=27, n_heads=16)  # README.md: 27 layers, 2048 wide, 16 heads
    config.model.block = "sequential=1,experts=26"  # README.md: all but the first layer have experts
    config.model.d_ff = 10_944  # config.json: inter_dim of the dense layer
    config.model.n_experts = 64  # README.md
    config.model.experts_per_token = 6  # README.md
    config.model.n_shared_experts = 2  # README.md
    config.model.d_expert = 1408  # README.md
    config.model.router_renormalize = False  # config.json: norm_topk_prob (default of DeepseekV2Config)
    config.model.balance_rate = 0.0  # README.md: losses alone balance
    config.model.balance_sequence_weight = (
        1e-3  # README.md: alpha_1 of the expert-level loss; config.json: within a sequence
    )
    config.model.d_kv_latent = 512  # README.md
    config.model.d_head = 128  # README.md: the part without rotation
    config.model.d_head_rope = 64  # README.md; queries straight from the stream
    config.model.vocab_size = 102_400  # config.json
    config.model.seq_len = 4096  # README.md
    config.model.init_std = 0.006  # DeepSeek-V2, section 3.1.2
    config.model.projection_std = 0.006  # DeepSeek-V2, section 3.1.2
    config.model.remat = "full"  # ours: memory first
    config.optim.peak_lr = 4.2e-4  # README.md
    config.optim.beta1 = 0.9  # README.md
    config.optim.beta2 = 0.95  # README.md
    config.optim.weight_decay = 0.1  # README.md
    config.optim.clip_norm = 1.0  # README.md
    config.schedule.name = "multi_step"  # README.md: x 0.316 at 80 % of the tokens, and again at 90 %
    config.schedule.warmup_steps = 2000  # README.md
    config.train.global_batch = 4608  # README.md; x 4096 = 19 M tokens
    config.train.steps = 301_993  # 5.7e12 tokens (README.md)
    config.precision.name = "bf16"  # not published: ours
    keep_watch(config)
    return config
