"""Small models of every kind that can be exported, their weights drawn by numpy: the same in any environment."""

import functools

import jax
import numpy as np

from scalelab import config as config_lib
from scalelab.config import ModelShape
from scalelab.configs import base
from scalelab.data.tokenizers.tokenizer import id_tokenizer
from scalelab.hf.places import all_declarations
from scalelab.model import transformer

SMALL = {"vocab_size": 48, "seq_len": 16}
STRETCHED = {"rope_original": 64, "rope_theta": 100.0}
LATENT = {"d_kv_latent": 16, "d_head_rope": 6, "d_head_value": 10}
ROUTED = {"block": "experts", "n_experts": 6, "d_expert": 24}
NORMS_AFTER = {"norm_place": "after", "qk_norm": True, "qk_norm_over": "projection", "norm_eps": 1e-5}
GEMMA = {"mlp": "geglu", "norm_place": "around", "window": 5, "n_kv_heads": 2, "d_head": 6, "global_every": 2}
NO_BIAS = {"balance_rate": 0.0}
DEEPSEEK = {
    "d_kv_latent": 8, "d_q_latent": 12, "d_head": 6, "d_head_rope": 4, "d_head_value": 5, "d_ff": 40,
    "block": "sequential=1,experts=2", "n_experts": 8, "d_expert": 24, "experts_per_token": 3, "n_shared_experts": 2,
    "router_scores": "sigmoid", "router_scale": 1.5, "router_groups": 4, "router_groups_per_token": 2,
}  # fmt: skip
MODELS = {
    "llama_grouped": (
        base.llama(32, 2, 4),
        {"n_kv_heads": 2, "rope_theta": 12345.6, "norm_eps": 1e-5, "bias": True},
        0,
    ),
    "llama_tied": (base.llama(24, 3, 3), {"d_head": 10, "d_ff": 40, "rope_theta": 5e5, "tied_head": True}, 0),
    "llama_mup": (base.llama(32, 2, 4), {"n_kv_heads": 1}, 12),
    "llama_linear": (base.llama(32, 2, 4), {"rope_scaling": "linear", "rope_factor": 2.5, "rope_theta": 100.0}, 0),
    "llama_llama3": (base.llama(32, 2, 4), {"rope_scaling": "llama3", "rope_factor": 8.0, **STRETCHED}, 0),
    "llama_yarn": (base.llama(32, 2, 4), {"rope_scaling": "yarn", "rope_factor": 2.0, "seq_len": 128, **STRETCHED}, 0),
    "mistral": (base.llama(32, 2, 4), {"window": 5, "n_kv_heads": 2, "rope_theta": 5e5}, 0),
    "qwen2": (base.llama(32, 2, 4), {"n_kv_heads": 2, "qkv_bias": True, "tied_head": True, "rope_theta": 1e6}, 0),
    "qwen2_windows": (base.llama(32, 4, 4), {"qkv_bias": True, "window": 5, "global_every": 2, "n_kv_heads": 1}, 0),
    "qwen3": (base.llama(32, 2, 4), {"n_kv_heads": 2, "d_head": 6, "qk_norm": True, "tied_head": True}, 0),
    "qwen3_yarn": (
        base.llama(32, 2, 4),
        {"qk_norm": True, "rope_scaling": "yarn", "rope_factor": 2.0, "seq_len": 128, **STRETCHED},
        0,
    ),
    "qwen3_mup": (base.llama(32, 2, 4), {"qk_norm": True}, 12),
    "olmo2": (base.llama(32, 3, 4), {**NORMS_AFTER, "n_kv_heads": 2, "rope_theta": 5e5, "d_head": 10}, 0),
    "olmo2_completep": (base.llama(32, 2, 4), NORMS_AFTER | {"tied_head": True}, 12),
    "olmo3": (base.llama(32, 5, 4), {**NORMS_AFTER, "window": 5, "global_every": 4, "rope_theta": 5e5}, 0),
    "olmo3_yarn": (
        base.llama(32, 3, 4),
        {**NORMS_AFTER, "window": 5, "global_every": 2, "rope_scaling": "yarn", "rope_factor": 2.0, "seq_len": 128}
        | {**STRETCHED, "rope_local_theta": STRETCHED["rope_theta"]},
        0,
    ),
    "smollm3": (base.llama(32, 5, 4), {"n_kv_heads": 2, "nope_every": 2, "rope_theta": 5e4, "tied_head": True}, 0),
    "smollm3_bias": (base.llama(32, 3, 4), {"nope_every": 3, "bias": True, "rope_theta": 100.0}, 0),
    "phi3": (base.llama(32, 2, 4), {"n_kv_heads": 2, "window": 5, "d_ff": 40}, 0),
    "stablelm": (base.llama(32, 2, 4), {"norm": "layernorm", "qkv_bias": True, "n_kv_heads": 2}, 0),
    "stablelm_parallel": (base.llama(24, 2, 3), {"norm": "layernorm", "block": "parallel", "tied_head": True}, 0),
    "stablelm_partial": (base.llama(32, 2, 4), {"norm": "layernorm", "rope_share": 0.25, "rope_theta": 100.0}, 0),
    "gemma": (base.llama(32, 2, 4), {"mlp": "geglu", "n_kv_heads": 1, "d_head": 10, "tied_head": True}, 0),
    "gemma_untied_mup": (base.llama(32, 2, 4), {"mlp": "geglu", "rope_theta": 100.0}, 12),
    "gemma2": (base.llama(32, 4, 4), GEMMA | {"attention_softcap": 2.0, "logit_softcap": 6.0, "tied_head": True}, 0),
    "gemma2_untied_mup": (
        base.llama(32, 3, 4),
        GEMMA | {"attention_softcap": 1.5, "n_kv_heads": 1, "window": 0, "global_every": 0},
        12,
    ),
    "gemma3_text": (
        base.llama(32, 5, 4),
        GEMMA
        | {"qk_norm": True, "global_every": 3, "rope_local_theta": 50.0, "rope_theta": 1e4, "rope_scaling": "linear"}
        | {"rope_factor": 8.0, "tied_head": True, "logit_scale": "rsqrt_width"},
        0,
    ),
    "gemma3_local_completep": (
        base.llama(32, 2, 4),
        GEMMA | {"qk_norm": True, "global_every": 0, "tied_head": True},
        12,
    ),
    "granite": (base.llama(32, 2, 4), {"n_kv_heads": 2, "bias": True, "tied_head": True}, 0),
    "gpt2": (base.gpt2(24, 3, 3), {}, 0),
    "gpt2_mup_untied": (base.gpt2(16, 2, 2), {"d_ff": 40, "tied_head": False, "norm_eps": 1e-3}, 10),
    "deepseek": (
        base.llama(32, 2, 4),
        {
            "rope_scaling": "yarn",
            "rope_factor": 2.0,
            "rope_mscale": 0.707,
            "seq_len": 128,
            "d_q_latent": 24,
            **STRETCHED,
            **LATENT,
        },
        0,
    ),
    "deepseek_mup": (base.llama(32, 2, 4), {"tied_head": True, **LATENT}, 16),
    "mixtral": (base.llama(32, 2, 4), {"n_kv_heads": 2, "window": 5, "rope_theta": 1e6, **ROUTED, **NO_BIAS}, 0),
    "qwen3_moe": (
        base.llama(32, 3, 4),
        {"d_head": 6, "n_kv_heads": 2, "d_ff": 40, "qk_norm": True, **ROUTED, **NO_BIAS}
        | {"experts_per_token": 3, "block": "experts=1,sequential=1,experts=1"},
        0,
    ),
    "olmoe": (
        base.llama(32, 2, 4),
        {"n_kv_heads": 2, "qk_norm": True, "qk_norm_over": "projection", "norm_eps": 1e-5, **ROUTED, **NO_BIAS}
        | {"router_renormalize": False},
        0,
    ),
    "deepseek_v3": (base.llama(32, 3, 4), DEEPSEEK, 0),
    "deepseek_v3_yarn": (
        base.llama(32, 2, 4),
        DEEPSEEK
        | {"rope_scaling": "yarn", "rope_factor": 8.0, "seq_len": 512, **STRETCHED}
        | {"block": "experts", "d_q_latent": 0, "router_renormalize": False, "tied_head": True},
        0,
    ),
    "deepseek_v3_completep": (base.llama(32, 3, 4), DEEPSEEK, 12),
}
MIXTURES = [name for name, (_, values, _) in MODELS.items() if "n_experts" in values]
DENSE = [name for name in MODELS if name not in MIXTURES]
TEXTS = ("olmoe", "deepseek_v3")  # those that also continue a text, with bytes for tokens
PROMPT, NEW_TOKENS = "def add(a, b):\n", 24

NONE = id_tokenizer(SMALL["vocab_size"])  # no tokenizer; 0 ends a document


def config(name: str, **changes):
    """The resolved config of an example; `changes` go into its model. The third entry above is muP's base width."""
    model, values, base_width = MODELS[name]
    tree = base.get_config()
    tree.model = model.copy_and_resolve_references()
    with tree.ignore_type():
        tree.model.update(SMALL | values | changes)
    if base_width:
        kind = "completep" if name.endswith("completep") else "mup"
        tree.parametrization.name, tree.parametrization.base_width = kind, base_width
    return config_lib.resolve(tree)


def family(name: str) -> str:
    """The family in which an example is written: that of its name, where the first that could is another."""
    return name if name in ("phi3", "granite") else ""


def shape(name: str, **changes) -> ModelShape:
    return config_lib.static(config(name, **changes)).model


def params(shape: ModelShape, seed: int = 0) -> dict:
    """Weights with which every parameter matters: matrices ~ 1/sqrt(fan_in), tables ~ 1/2 or 1/5, gains about 1,
    biases not 0, that of experts' ranks among them.
    """
    rng, tree = np.random.default_rng(seed), {}
    for name, declared in all_declarations(shape).items():
        table = 0.2 if shape.n_experts else 0.5
        std = table if declared.is_table else declared.fan_in**-0.5 if declared.ins else 0.3
        leaf = rng.normal(1.0 if declared.role == "gain" else 0.0, std, declared.shape).astype(np.float32)
        *path, last = name.split(".")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        place[last] = leaf
    return tree


@functools.partial(jax.jit, static_argnums=0)
def logits(shape: ModelShape, params: dict, tokens: jax.Array) -> jax.Array:
    """[B, S, V], compiled."""
    return transformer.next_token_logits(shape, params, tokens)


def tokens() -> np.ndarray:
    """[2, 16] ids below 48."""
    return np.random.default_rng(1).integers(0, SMALL["vocab_size"], (2, SMALL["seq_len"]), np.int32)
