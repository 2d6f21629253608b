"""Llama (Touvron et al. 2023) in the layout of `LlamaForCausalLM`: projections are outs x ins; rope rotates halves.

Also Mistral (Jiang et al. 2023): a Llama without biases whose layers all have one window.
"""

import dataclasses
from typing import Any

from scalelab.config import ModelShape
from scalelab.hf import options
from scalelab.hf.formats import PLAIN_BLOCK, REQUIRED_KEY, Format
from scalelab.hf.places import TensorRow

LAYER = "model.layers.{}."
ATTENTION = {f"self_attn.{name}_proj": f"blocks.attention.{name}" for name in "qkvo"}
MLP = {f"mlp.{name}_proj": f"blocks.mlp.{name}" for name in ("gate", "up", "down")}
KINDS = {"position": "rope", "norm": "rmsnorm", "mlp": "swiglu"}  # of every model of this family

OURS = KINDS | {"qk_norm": False, "logit_softcap": 0.0, "rope_mscale": 1.0} | PLAIN_BLOCK


def weights(names: dict[str, str]) -> tuple[TensorRow, ...]:
    """Rows of the layers' weights, each outs x ins: {name in theirs: layer in ours}."""
    return tuple(TensorRow(f"{LAYER}{theirs}.weight", (f"{ours}.w",), True) for theirs, ours in names.items())


def whole_heads(shape: ModelShape) -> dict[str, Any]:
    """The width that transformers requires, although head_dim is a separate key."""
    return {"d_model": max(1, shape.d_model // shape.n_heads) * shape.n_heads}


EMBEDDING = TensorRow("model.embed_tokens.weight", ("embed.w",))
QKV_BIASES = tuple(TensorRow(f"{LAYER}self_attn.{x}_proj.bias", (f"blocks.attention.{x}.b",)) for x in "qkv")
QK_NORMS = tuple(TensorRow(f"{LAYER}self_attn.{x}_norm.weight", (f"blocks.attention.{x}_norm.g",)) for x in "qk")
FINAL_NORM_AND_HEAD = (
    TensorRow("model.norm.weight", ("final_norm.g",)),
    TensorRow("lm_head.weight", ("head.w",), True),
)
NORMS_AND_HEAD = (
    TensorRow(f"{LAYER}input_layernorm.weight", ("blocks.attention_norm.g",)),
    TensorRow(f"{LAYER}post_attention_layernorm.weight", ("blocks.mlp_norm.g",)),
    *FINAL_NORM_AND_HEAD,
)

LLAMA = Format(
    name="llama",
    architecture="LlamaForCausalLM",
    prefix="model.",
    keys={
        "vocab_size": ("vocab_size",),
        "d_model": ("hidden_size",),
        "n_layers": ("num_hidden_layers",),
        "n_heads": ("num_attention_heads",),
        "n_kv_heads": ("num_key_value_heads",),
        "d_head": ("head_dim",),
        "d_ff": ("intermediate_size",),
        "seq_len": ("max_position_embeddings",),
        "norm_eps": ("rms_norm_eps",),
        "rope_theta": ("rope_theta", "rope_parameters.rope_theta"),  # transformers 4, transformers 5
        "tied_head": ("tie_word_embeddings",),
        "bias": ("attention_bias", "mlp_bias"),
    },
    absent={
        **dict.fromkeys(("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"), REQUIRED_KEY),
        **{"intermediate_size": REQUIRED_KEY, "num_key_value_heads": None, "head_dim": None},
        **{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0},
        **{"tie_word_embeddings": False, "attention_bias": False},
        **{"hidden_act": "silu"},
    },
    ours=OURS | {"window": 0},
    theirs={"hidden_act": "silu"},
    limits=lambda shape: whole_heads(shape) | options.rope_constraints(shape),
    tensors=(
        EMBEDDING,
        *weights(ATTENTION | MLP),
        *(TensorRow(f"{LAYER}{theirs}.bias", (f"{ours}.b",)) for theirs, ours in (ATTENTION | MLP).items()),
        *NORMS_AND_HEAD,
    ),
    buffers=(".rotary_emb.inv_freq",),
    told=options.ROPE_KEYS,
    write=options.rope_to_hf,
    read=lambda content, values: options.rope_from_hf(content, values["seq_len"]),
)

KEYS_WITHOUT_BIAS = {ours: theirs for ours, theirs in LLAMA.keys.items() if ours != "bias"}
MISTRAL = dataclasses.replace(
    LLAMA,
    name="mistral",
    architecture="MistralForCausalLM",
    keys=KEYS_WITHOUT_BIAS,
    absent=LLAMA.absent | {"num_key_value_heads": 8, "max_position_embeddings": 131_072},
    ours=OURS | {"bias": False, "global_every": 0},
    told=(*options.ROPE_KEYS, "window"),
    write=lambda shape: options.rope_to_hf(shape) | {"sliding_window": shape.window},
    read=lambda content, values: options.rope_from_hf(content, values["seq_len"]) | options.parse_window(content),
    also=("sliding_window", "layer_types"),
)
