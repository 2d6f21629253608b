"""Qwen 2 and 2.5 (2024): a Llama with biases on queries, keys and values; Qwen 3 (2025): with norms on their heads."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.hf import options
from scalelab.hf.families.llama import (
    ATTENTION,
    EMBEDDING,
    KEYS_WITHOUT_BIAS,
    LLAMA,
    MLP,
    NORMS_AND_HEAD,
    OURS,
    QK_NORMS,
    QKV_BIASES,
    weights,
    whole_heads,
)
from scalelab.hf.layer_types import FULL, SLIDING, WINDOW_KEYS, check_layer_count, window_from_hf, window_to_hf

WINDOW_FROM = 28  # max_window_layers where config.json has none: the first layer with a window


def _write(shape: ModelShape) -> dict[str, Any]:
    used = {"use_sliding_window": bool(shape.window), "max_window_layers": 0 if shape.window else shape.n_layers}
    return options.rope_to_hf(shape) | window_to_hf(shape) | used


def _read(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Rope, and the window of the layers from max_window_layers on, or of those that layer_types lists."""
    count, first = check_layer_count(values), content.get("max_window_layers", WINDOW_FROM)
    if not isinstance(first, int) or isinstance(first, bool) or first < 0:
        raise BadInput(f"max_window_layers={repr(first)[:40]} is not a number of layers from 0")
    window = content.get("sliding_window", 4096) if options.read_flag(content, "use_sliding_window") else None
    absent = [SLIDING if window is not None and layer >= first else FULL for layer in range(count)]
    if FULL in absent and SLIDING in absent and content.get("layer_types") is None:
        raise BadInput(
            f"max_window_layers={first} of {count} layers: read are windows of all layers, or of all but every n-th"
        )
    return options.rope_from_hf(content, values["seq_len"]) | window_from_hf(content, values, window, absent)


QWEN2 = dataclasses.replace(
    LLAMA,
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    keys=KEYS_WITHOUT_BIAS,
    absent=LLAMA.absent | {"max_position_embeddings": 32_768},
    ours=OURS | {"bias": False, "qkv_bias": True},
    tensors=(EMBEDDING, *weights(ATTENTION | MLP), *QKV_BIASES, *NORMS_AND_HEAD),
    told=(*options.ROPE_KEYS, *WINDOW_KEYS),
    write=_write,
    read=_read,
    also=("use_sliding_window", "sliding_window", "max_window_layers", "layer_types"),
)

QWEN3 = dataclasses.replace(
    QWEN2,
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    absent=QWEN2.absent | {"head_dim": 128, "attention_bias": False},
    ours=OURS | {"bias": False, "qk_norm": True, "qk_norm_over": "head"},
    theirs=QWEN2.theirs | {"attention_bias": False},
    limits=lambda shape: whole_heads(shape) | options.rope_constraints(shape),
    tensors=(EMBEDDING, *weights(ATTENTION | MLP), *QK_NORMS, *NORMS_AND_HEAD),
)
