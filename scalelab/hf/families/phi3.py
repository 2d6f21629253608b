"""Phi-3 (Microsoft 2024): a Llama whose queries, keys and values are one tensor, as are the MLP's gate and up."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.hf import options
from scalelab.hf.families.llama import (
    EMBEDDING,
    KEYS_WITHOUT_BIAS,
    LAYER,
    LLAMA,
    NORMS_AND_HEAD,
    OURS,
    weights,
    whole_heads,
)
from scalelab.hf.places import TensorRow

ORIGINAL = options.ORIGINAL_LENGTH_KEY  # of longrope, whose lists of factors are not read


def _limits(shape: ModelShape) -> dict[str, Any]:
    """Values required of this shape: RoPE as it is, for transformers knows no scaling here but longrope."""
    return whole_heads(shape) | {"rope_scaling": "none"}


def _write(shape: ModelShape) -> dict[str, Any]:
    return options.rope_to_hf(shape) | {"sliding_window": shape.window or None, ORIGINAL: shape.seq_len}


def _read(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    read = options.rope_from_hf(content, values["seq_len"])
    if read["rope_scaling"] != "none":
        raise BadInput(f"rope_scaling is {read['rope_scaling']!r}: transformers reads none but longrope in phi3")
    window = content.get("sliding_window")
    return read | {"window": 0 if window is None else window}


PHI3 = dataclasses.replace(
    LLAMA,
    name="phi3",
    architecture="Phi3ForCausalLM",
    keys=KEYS_WITHOUT_BIAS,
    absent=LLAMA.absent | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0},
    ours=OURS | {"bias": False, "global_every": 0},
    theirs=LLAMA.theirs | {"partial_rotary_factor": 1.0},
    limits=_limits,
    tensors=(
        EMBEDDING,
        TensorRow(f"{LAYER}self_attn.qkv_proj.weight", tuple(f"blocks.attention.{x}.w" for x in "qkv"), True),
        TensorRow(f"{LAYER}mlp.gate_up_proj.weight", ("blocks.mlp.gate.w", "blocks.mlp.up.w"), True),
        *weights({"self_attn.o_proj": "blocks.attention.o", "mlp.down_proj": "blocks.mlp.down"}),
        *NORMS_AND_HEAD,
    ),
    told=(*options.ROPE_KEYS, "window"),
    write=_write,
    read=_read,
    extra={"pad_token_id": None},  # else one beyond small vocabularies
    also=("sliding_window",),
    neutral=(ORIGINAL,),
)
