"""SmolLM3 3B (Hugging Face 2025, huggingface.co/blog/smollm3): WSD, no positions in every fourth layer, 11 T tokens.

    scalelab train --config=configs/recipes/smollm3_3b.py --workdir=runs/smollm3_3b

1.11e13 tokens. Looked up: text/pretraining/README.md and smollm3/stage3_9T_11T.yaml in huggingface/smollm ("yaml"
below).
"""

from ml_collections import ConfigDict

from scalelab.configs import base
from scalelab.configs.recipes import keep_watch

PUBLISHED = {"total": 3_075_098_624, "tokens": 11.2e12}
NOT_REPRODUCED: tuple[str, ...] = (
    "three stages of data, 8 T, 2 T and 1.1 T tokens: give data.mixture with its steps (yaml: data_stages)",
    "long-context stages to 64k tokens with rope's base at 1.5e6, then 5e6",
)


def get_config() -> ConfigDict:
    """The yaml of stage 3, which carries the schedule of all."""
    config = base.get_config()
    config.model = base.llama(d_model=2048, n_layers=36, n_heads=16)  # yaml
    config.model.n_kv_heads = 4  # yaml: as good as one a head in their ablations
    config.model.d_ff = 11_008  # yaml
    config.model.vocab_size = 128_256  # yaml: Llama 3's tokenizer
    config.model.seq_len = 4096  # yaml
    config.model.rope_theta = 50_000.0  # yaml
    config.model.nope_every = 4  # yaml: no_rope_layer; long context at no cost to short
    config.model.tied_head = True  # yaml
    config.model.projection_std = 0.02  # yaml: init_method
    config.model.depth_scaled_init = True  # nanotron's standard parametrization (from memory)
    config.model.remat = "none"  # yaml: recompute_layer false
    config.data.documents = "mask"  # yaml: _use_doc_masking
    config.optim.peak_lr = 2e-4  # yaml
    config.optim.beta1 = 0.9  # yaml
    config.optim.beta2 = 0.95  # yaml
    config.optim.eps = 1e-8  # yaml
    config.optim.weight_decay = 0.1  # yaml
    config.optim.decay_embeddings = False  # yaml: weight_decay_exclude_named_params; as OLMo 2, for stability
    config.optim.decay_vectors = True  # yaml: nothing else is excluded
    config.optim.clip_norm = 1.0  # yaml
    config.schedule.name = "wsd"  # README
    config.schedule.warmup_steps = 2000  # yaml
    config.schedule.decay_steps = 522_000  # yaml: 11 % of the steps; the README says 10 %
    config.schedule.decay_shape = "linear"  # yaml
    config.schedule.final_share = 0.0  # yaml: min_decay_lr
    config.train.global_batch = 576  # yaml: 3 x 192; x 4096 = 2.36 M tokens
    config.train.steps = 4_720_000  # yaml; 1.11e13 tokens
    config.precision.name = "bf16"  # yaml
    keep_watch(config)
    return config
