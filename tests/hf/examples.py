"""Small models of every kind that can be exported, their weights drawn by numpy: the same in any environment."""

import functools

import jax
import numpy as np

from scalelab import config as config_lib
from scalelab.config import ModelShape
from scalelab.configs import base
from scalelab.data.tokenizers.tokenizer import id_tokenizer
from scalelab.model import transformer
from scalelab.model.declare import named_leaves
from scalelab.model.transformer import parameter_declarations

SMALL = {"vocab_size": 48, "seq_len": 16}
STRETCHED = {"rope_original": 64, "rope_theta": 100.0}
LATENT = {"d_kv_latent": 16, "d_head_rope": 6, "d_head_value": 10}
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
}


NONE = id_tokenizer(SMALL["vocab_size"])  # no tokenizer; 0 ends a document


def config(name: str, **changes):
    """The resolved config of an example; `changes` go into its model. The third entry above is muP's base width."""
    model, values, base_width = MODELS[name]
    tree = base.get_config()
    tree.model = model.copy_and_resolve_references()
    with tree.ignore_type():
        tree.model.update(SMALL | values | changes)
    if base_width:
        tree.parametrization.name, tree.parametrization.base_width = "mup", base_width
    return config_lib.resolve(tree)


def shape(name: str, **changes) -> ModelShape:
    return config_lib.static(config(name, **changes)).model


def params(shape: ModelShape, seed: int = 0) -> dict:
    """Weights with which every parameter matters: matrices ~ 1/sqrt(fan_in), tables ~ 1/2, gains about 1, biases not
    0.
    """
    rng, tree = np.random.default_rng(seed), {}
    for name, declared in named_leaves(parameter_declarations(shape)).items():
        std = 0.5 if declared.is_table else declared.fan_in**-0.5 if declared.ins else 0.3
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
