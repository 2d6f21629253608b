"""Llama (Touvron et al. 2023) in the layout of `LlamaForCausalLM`: projections are outs x ins; rope rotates halves.

Also Mistral (Jiang et al. 2023): a Llama without biases whose layers all have one window.
"""

import dataclasses

from scalelab.hf import options
from scalelab.hf.formats import PLAIN_BLOCK, REQUIRED_KEY, Format, TensorRow

_LAYER = "model.layers.{}."
_PROJECTIONS = {f"self_attn.{name}_proj": f"blocks.attention.{name}" for name in "qkvo"} | {
    f"mlp.{name}_proj": f"blocks.mlp.{name}" for name in ("gate", "up", "down")
}

_OURS = {
    "position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "qk_norm": False, "logit_softcap": 0.0, "rope_mscale": 1.0,
    **PLAIN_BLOCK,
}  # fmt: skip

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
    ours=_OURS | {"window": 0},
    theirs={"hidden_act": "silu"},
    # transformers requires it, although head_dim is a separate key
    limits=lambda shape: (
        {"d_model": max(1, shape.d_model // shape.n_heads) * shape.n_heads} | options.rope_constraints(shape)
    ),
    tensors=(
        TensorRow("model.embed_tokens.weight", ("embed.w",)),
        *(TensorRow(f"{_LAYER}{theirs}.weight", (f"{ours}.w",), True) for theirs, ours in _PROJECTIONS.items()),
        *(TensorRow(f"{_LAYER}{theirs}.bias", (f"{ours}.b",)) for theirs, ours in _PROJECTIONS.items()),
        TensorRow(f"{_LAYER}input_layernorm.weight", ("blocks.attention_norm.g",)),
        TensorRow(f"{_LAYER}post_attention_layernorm.weight", ("blocks.mlp_norm.g",)),
        TensorRow("model.norm.weight", ("final_norm.g",)),
        TensorRow("lm_head.weight", ("head.w",), True),
    ),
    buffers=(".rotary_emb.inv_freq",),
    told=options.ROPE_KEYS,
    write=options.rope_to_hf,
    read=lambda content, values: options.rope_from_hf(content, values["seq_len"]),
)

MISTRAL = dataclasses.replace(
    LLAMA,
    name="mistral",
    architecture="MistralForCausalLM",
    keys={ours: theirs for ours, theirs in LLAMA.keys.items() if ours != "bias"},
    absent=LLAMA.absent | {"num_key_value_heads": 8, "max_position_embeddings": 131_072},
    ours=_OURS | {"bias": False, "global_every": 0},
    told=(*options.ROPE_KEYS, "window"),
    write=lambda shape: options.rope_to_hf(shape) | {"sliding_window": shape.window},
    read=lambda content, values: options.rope_from_hf(content, values["seq_len"]) | options.parse_window(content),
)
