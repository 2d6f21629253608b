"""StableLM (Stability AI 2023): a Llama with LayerNorms; both branches may follow one norm."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.hf import options
from scalelab.hf.families.llama import ATTENTION, EMBEDDING, LAYER, LLAMA, MLP, OURS, QKV_BIASES, weights, whole_heads
from scalelab.hf.places import TensorRow, layer_norms

SHARE = "partial_rotary_factor"  # 1/4 where config.json has none
_NORMS = {
    f"{LAYER}input_layernorm": "blocks.attention_norm",
    f"{LAYER}post_attention_layernorm": "blocks.mlp_norm",
    "model.norm": "final_norm",
}


def _write(shape: ModelShape) -> dict[str, Any]:
    share = dict.fromkeys((SHARE, f"rope_parameters.{SHARE}"), shape.rope_share)
    return options.rope_to_hf(shape) | share | {"use_parallel_residual": shape.block == "parallel"}


def _read(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    content, shares = dict(content), set()
    for name in options.HF_ROPE_GROUPS:
        if isinstance(content.get(name), dict):
            content[name] = dict(content[name])
            shares.add(content[name].pop(SHARE, None))
    shares = {share for share in {*shares, content.get(SHARE)} if share is not None} or {0.25}
    if len(shares) > 1 or not all(isinstance(share, int | float) and 0 < share <= 1 for share in shares):
        listed = " and ".join(sorted(repr(share)[:40] for share in shares))
        raise BadInput(f"{SHARE}={listed}: one number above 0, at most 1, is wanted")
    block = {"block": "parallel" if options.read_flag(content, "use_parallel_residual") else "sequential"}
    rope = options.rope_from_hf(content, values["seq_len"])
    return rope | block | {"rope_share": float(shares.pop())}


STABLELM = dataclasses.replace(
    LLAMA,
    name="stablelm",
    architecture="StableLmForCausalLM",
    keys={ours: theirs for ours, theirs in LLAMA.keys.items() if ours not in ("bias", "d_head")}
    | {"norm_eps": ("layer_norm_eps",), "qkv_bias": ("use_qkv_bias",)},
    absent=LLAMA.absent
    | {"max_position_embeddings": 4096, "layer_norm_eps": 1e-5, "use_qkv_bias": False, "qk_layernorm": False},
    ours={key: value for key, value in OURS.items() if key not in ("block", "qkv_bias", "rope_share")}
    | {"norm": "layernorm", "bias": False, "window": 0},
    theirs=LLAMA.theirs | {"qk_layernorm": False},
    limits=lambda shape: (
        whole_heads(shape)
        | options.rope_constraints(shape)
        | {"d_head": shape.d_model / shape.n_heads, "block": shape.block if shape.block == "parallel" else "sequential"}
    ),
    tensors=(
        EMBEDDING,
        *weights(ATTENTION | MLP),
        *QKV_BIASES,
        *layer_norms(_NORMS),
        TensorRow("lm_head.weight", ("head.w",), True),
    ),
    told=(*options.ROPE_KEYS, "block", "rope_share"),
    write=_write,
    read=_read,
    also=("use_parallel_residual", SHARE),
)
