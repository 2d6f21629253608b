"""DeepSeek's models with latent attention (DeepSeek-V2 and V3, 2024) in the layout of transformers, all layers dense.

RoPE rotates neighbouring pairs there, (2i, 2i + 1), where ours rotates halves, (i, i + R/2): so the outs of queries and
of the shared key that are rotated stand in another order. The latents' norms have an eps of 1e-6 whatever
`rms_norm_eps` is (DeepseekV3RMSNorm's default).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.hf import options
from scalelab.hf.formats import NULL, PLAIN_BLOCK, REQUIRED_KEY, Format, TensorRow

_LAYER = "model.layers.{}."
_MLP = {f"mlp.{name}_proj": f"blocks.mlp.{name}" for name in ("gate", "up", "down")}
_NORMS = {
    "input_layernorm": "blocks.attention_norm", "post_attention_layernorm": "blocks.mlp_norm",
    "self_attn.q_a_layernorm": "blocks.attention.q_norm", "self_attn.kv_a_layernorm": "blocks.attention.kv_norm",
}  # fmt: skip
MSCALES = (
    "mscale",
    "mscale_all_dim",
)  # of their product's factor and of their RoPE's; equal, they cancel in the latter


def pairs(width: int) -> np.ndarray:
    """Which of our rotated numbers each of theirs is: theirs 2i and 2i + 1 are ours i and i + width/2."""
    return np.arange(width).reshape(2, -1).T.reshape(-1)


def _query_outs(shape: ModelShape) -> np.ndarray:
    of_head = np.concatenate([np.arange(shape.d_head), shape.d_head + pairs(shape.d_head_rope)])
    return (np.arange(shape.n_heads)[:, None] * shape.d_key + of_head[None]).reshape(-1)


def _token_outs(shape: ModelShape) -> np.ndarray:
    return np.concatenate([np.arange(shape.d_kv_latent), shape.d_kv_latent + pairs(shape.d_head_rope)])


_ATTENTION = {
    "q_proj": ("q", _query_outs), "q_a_proj": ("q_down", None), "q_b_proj": ("q_up", _query_outs),
    "kv_a_proj_with_mqa": ("kv_down", _token_outs), "kv_b_proj": ("kv_up", None), "o_proj": ("o", None),
}  # fmt: skip


def _write(shape: ModelShape) -> dict[str, Any]:
    """Config.json's values of several of ours; yarn's m as both of theirs, so that it multiplies the products alone."""
    groups = options.HF_ROPE_GROUPS if shape.rope_scaling == "yarn" else ()
    scales = {f"{group}.{key}": shape.rope_mscale for group in groups for key in MSCALES}
    return options.rope_to_hf(shape) | scales | {"q_lora_rank": shape.d_q_latent or NULL}


def _read(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    groups = {name: content[name] for name in options.HF_ROPE_GROUPS if isinstance(content.get(name), dict)}
    scales = [tuple(group.get(key) for key in MSCALES) for group in groups.values()]
    without = {name: {k: v for k, v in group.items() if k not in MSCALES} for name, group in groups.items()}
    rope = options.rope_from_hf({**content, **without}, values["seq_len"])
    if rope["rope_scaling"] == "yarn":
        first = scales[0][0]
        is_number = isinstance(first, int | float) and not isinstance(first, bool) and 0 < first < 1e3
        if not is_number or any(scale != first for pair in scales for scale in pair):
            listed = " and ".join(
                f"{name}.{key}={group.get(key)!r}" for name, group in groups.items() for key in MSCALES
            )
            raise BadInput(f"{listed[:200]}: with yarn only one positive number for all of them can be read")
        rope["rope_mscale"] = float(first)
    latent = content.get("q_lora_rank", 1536)
    if latent is not None and (not isinstance(latent, int) or isinstance(latent, bool) or not 0 < latent < 2**31):
        raise BadInput(f"q_lora_rank={repr(latent)[:40]} is not a number above 0, or null")
    return rope | {"d_q_latent": latent or 0}


def _constraints(shape: ModelShape) -> dict[str, Any]:
    """Values required of a shape."""
    heads = {"n_kv_heads": shape.n_heads, "d_kv_latent": max(1, shape.d_kv_latent)}
    return options.rope_constraints(shape) | heads | {"norm_eps": 1e-6}


DEEPSEEK_V3 = Format(
    name="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    prefix="model.",
    keys={
        "vocab_size": ("vocab_size",),
        "d_model": ("hidden_size",),
        "n_layers": ("num_hidden_layers", "first_k_dense_replace"),  # all layers are dense
        "n_heads": ("num_attention_heads",),
        "n_kv_heads": ("num_key_value_heads",),
        "d_head": ("qk_nope_head_dim",),
        "d_head_rope": ("qk_rope_head_dim",),
        "d_head_value": ("v_head_dim",),
        "d_kv_latent": ("kv_lora_rank",),
        "d_ff": ("intermediate_size",),
        "seq_len": ("max_position_embeddings",),
        "norm_eps": ("rms_norm_eps",),
        "rope_theta": ("rope_theta", "rope_parameters.rope_theta"),  # transformers 4, transformers 5
        "tied_head": ("tie_word_embeddings",),
    },
    absent={
        **dict.fromkeys(("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"), REQUIRED_KEY),
        **dict.fromkeys(("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), REQUIRED_KEY),
        **{"intermediate_size": REQUIRED_KEY, "num_key_value_heads": None},
        **{"max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0},
        **{"tie_word_embeddings": False, "attention_bias": False, "hidden_act": "silu"},
        **{"rope_interleave": True, "num_nextn_predict_layers": 0},
    },
    ours={
        "position": "rope", "norm": "rmsnorm", "mlp": "swiglu", "qk_norm": False, "logit_softcap": 0.0, "window": 0,
        "bias": False,
    }
    | {key: value for key, value in PLAIN_BLOCK.items() if key != "d_kv_latent"},
    theirs={
        "hidden_act": "silu", "attention_bias": False, "rope_interleave": True, "num_nextn_predict_layers": 0,
    },
    limits=_constraints,
    tensors=(
        TensorRow("model.embed_tokens.weight", ("embed.w",)),
        *(
            TensorRow(f"{_LAYER}self_attn.{theirs}.weight", (f"blocks.attention.{ours}.w",), True, outs)
            for theirs, (ours, outs) in _ATTENTION.items()
        ),
        *(TensorRow(f"{_LAYER}{theirs}.weight", (f"{ours}.w",), True) for theirs, ours in _MLP.items()),
        *(TensorRow(f"{_LAYER}{theirs}.weight", (f"{ours}.g",)) for theirs, ours in _NORMS.items()),
        TensorRow("model.norm.weight", ("final_norm.g",)),
        TensorRow("lm_head.weight", ("head.w",), True),
    ),
    buffers=(".rotary_emb.inv_freq",),
    told=(*options.ROPE_KEYS, "rope_mscale", "d_q_latent"),
    write=_write,
    read=_read,
)  # fmt: skip

_V2_ONLY = ("rope_interleave", "num_nextn_predict_layers")  # DeepSeek-V2 has no choice of either
DEEPSEEK_V2 = dataclasses.replace(
    DEEPSEEK_V3,
    name="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    absent=DEEPSEEK_V3.absent | {"max_position_embeddings": 2048, "mlp_bias": False},
    theirs={key: value for key, value in DEEPSEEK_V3.theirs.items() if key not in _V2_ONLY} | {"mlp_bias": False},
)
