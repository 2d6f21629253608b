"""OLMo 2 (2024): norms after attention and MLP, and over all queries and keys; OLMo 3 (2025): with a window."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.config import ModelShape
from scalelab.hf import options
from scalelab.hf.families.llama import (
    ATTENTION,
    EMBEDDING,
    FINAL_NORM_AND_HEAD,
    KEYS_WITHOUT_BIAS,
    LAYER,
    LLAMA,
    MLP,
    OURS,
    QK_NORMS,
    weights,
    whole_heads,
)
from scalelab.hf.layer_types import (
    FULL,
    SLIDING,
    WINDOW_KEYS,
    check_layer_count,
    layered_rope_constraints,
    layered_rope_from_hf,
    layered_rope_to_hf,
    window_from_hf,
    window_to_hf,
)
from scalelab.hf.places import TensorRow

THETA, FULL_EVERY = 500_000.0, 4  # OLMo 3's where config.json has none

OLMO2 = dataclasses.replace(
    LLAMA,
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    keys=KEYS_WITHOUT_BIAS,
    absent=LLAMA.absent | {"rms_norm_eps": 1e-5},
    ours=OURS | {"bias": False, "window": 0, "norm_place": "after", "qk_norm": True, "qk_norm_over": "projection"},
    theirs=LLAMA.theirs | {"attention_bias": False},
    tensors=(
        EMBEDDING,
        *weights(ATTENTION | MLP),
        *QK_NORMS,
        TensorRow(f"{LAYER}post_attention_layernorm.weight", ("blocks.attention_norm.g",)),
        TensorRow(f"{LAYER}post_feedforward_layernorm.weight", ("blocks.mlp_norm.g",)),
        *FINAL_NORM_AND_HEAD,
    ),
    extra={"pad_token_id": None},  # else id 1
)


def _limit_olmo3(shape: ModelShape) -> dict[str, Any]:
    """Values required of this shape: a window, and one theta for all layers, as transformers 4 has it."""
    local = {"rope_local_theta": shape.rope_theta} if shape.rope_local_theta else {}
    return {"window": max(shape.window, 1)} | whole_heads(shape) | local | layered_rope_constraints(shape)


def _read_olmo3(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    count = check_layer_count(values)
    absent = [FULL if (layer + 1) % FULL_EVERY == 0 else SLIDING for layer in range(count)]
    rope = layered_rope_from_hf(content, values, THETA, content.get("rope_theta", THETA))
    return rope | window_from_hf(content, values, content.get("sliding_window", 4096), absent)


OLMO3 = dataclasses.replace(
    OLMO2,
    name="olmo3",
    architecture="Olmo3ForCausalLM",
    keys={ours: theirs for ours, theirs in OLMO2.keys.items() if ours != "rope_theta"},
    ours={key: value for key, value in OLMO2.ours.items() if key != "window"},
    limits=_limit_olmo3,
    told=(*options.ROPE_KEYS, *WINDOW_KEYS, "rope_theta", "rope_local_theta"),
    write=lambda shape: layered_rope_to_hf(shape) | window_to_hf(shape) | {"rope_theta": shape.rope_theta},
    read=_read_olmo3,
    also=("sliding_window", "layer_types", "rope_theta"),
)
