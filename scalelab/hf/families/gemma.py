"""Gemma (2024): a Llama with geglu; Gemma 2 (2024): norms around branches, capped logits; Gemma 3 (2025): norms on
heads, a theta for local layers.

Their gains are 1 + w, and their code multiplies embeddings by sqrt(d_model): here both are part of the weights, so that
a tied model is one with model.logit_scale=rsqrt_width.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.hf import options
from scalelab.hf.families.llama import (
    ATTENTION,
    EMBEDDING,
    FINAL_NORM_AND_HEAD,
    KEYS_WITHOUT_BIAS,
    LAYER,
    LLAMA,
    MLP,
    NORMS_AND_HEAD,
    OURS,
    QK_NORMS,
    weights,
    whole_heads,
)
from scalelab.hf.formats import NULL
from scalelab.hf.layer_types import (
    FULL,
    LOCAL_THETA,
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
from scalelab.model.layers import LOGIT_SCALES

QUERY_SCALE, PATTERN = "query_pre_attn_scalar", "sliding_window_pattern"
CAPS = {"attention_softcap": "attn_logit_softcapping", "logit_softcap": "final_logit_softcapping"}
ABSENT_CAPS = {"attention_softcap": 50.0, "logit_softcap": 30.0}  # of Gemma 2 where config.json has none
THETA, THETA_OF_LOCAL = 1e6, 1e4  # Gemma 3's where config.json has none
_TOLD = ("logit_scale", "norm_place", "mlp", "qk_norm", "attention_softcap", "logit_softcap")  # not as in a Llama
_NORMS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "attention_out_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_out_norm",
}


def _by_one(rows: tuple[TensorRow, ...]) -> tuple[TensorRow, ...]:
    """Rows of norms whose gains are 1 + w."""
    return tuple(dataclasses.replace(row, offset=1.0) if row.ours[0].endswith(".g") else row for row in rows)


def _implied(shape: ModelShape) -> dict[str, float]:
    """What transformers' code multiplies: embeddings, but not where they are the head, which has our factor instead."""
    times = shape.d_model**0.5
    return {
        "embed": times,
        "final_norm": 1 / (LOGIT_SCALES[shape.logit_scale](shape) * (times if shape.tied_head else 1)),
    }


def _factors(content: Mapping[str, Any], shape: ModelShape) -> dict[str, float]:
    """The scale of queries, in the place of 1/sqrt(d_head)."""
    value = content.get(QUERY_SCALE, 256)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1e-9 < value < 1e9:
        raise BadInput(f"{QUERY_SCALE}={repr(value)[:40]} is not a number from 1e-9 to 1e9")
    return {f"blocks.attention.{'q_norm' if shape.qk_norm else 'q'}": (shape.d_head / value) ** 0.5}


def _write_common(shape: ModelShape) -> dict[str, Any]:
    caps = {name: getattr(shape, ours) or NULL for ours, name in CAPS.items()}
    return window_to_hf(shape) | caps | {QUERY_SCALE: shape.d_head}


def _read_caps(content: Mapping[str, Any], absent: Mapping[str, float]) -> dict[str, float]:
    """Caps of logits; null: none."""
    caps = {ours: content.get(CAPS[ours], value) for ours, value in absent.items()}
    for ours, value in caps.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value <= 1e6):
            raise BadInput(f"{CAPS[ours]}={repr(value)[:40]} is not a number from 0 to 1e6")
    return {ours: float(value or 0) for ours, value in caps.items()}


def _read_window(content: Mapping[str, Any], values: Mapping[str, Any], every: Any) -> dict[str, Any]:
    """The window of all but every n-th layer, or of those that layer_types lists."""
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise BadInput(f"{PATTERN}={repr(every)[:40]} is not a whole number from 1")
    absent = [SLIDING if (layer + 1) % every else FULL for layer in range(check_layer_count(values))]
    return window_from_hf(content, values, content.get("sliding_window", 4096), absent)


def _read_tied(values: Mapping[str, Any]) -> dict[str, str]:
    return {"logit_scale": "rsqrt_width" if values["tied_head"] else "none"}


def _read_gemma2(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    rope = options.rope_from_hf(content, values["seq_len"])
    return rope | _read_window(content, values, 2) | _read_caps(content, ABSENT_CAPS) | _read_tied(values)


def _read_gemma3(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    window = _read_window(content, values, content.get(PATTERN) or 6)
    rope = layered_rope_from_hf(content, values, THETA, THETA_OF_LOCAL)
    if not window["global_every"]:  # all layers are alike, and those with a window have their own theta, unscaled
        local = rope["rope_local_theta"]
        rope |= {"rope_local_theta": 0.0}
        rope |= {"rope_theta": local, "rope_scaling": "none", "rope_factor": 1.0} if window["window"] and local else {}
    return rope | window | _read_caps(content, {"logit_softcap": 0.0}) | _read_tied(values)


_COMMON = {key: value for key, value in OURS.items() if key not in _TOLD}
GEMMA2 = dataclasses.replace(
    LLAMA,
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    keys=KEYS_WITHOUT_BIAS,
    absent=LLAMA.absent
    | {"num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True}
    | {"hidden_activation": "gelu_pytorch_tanh"},
    ours=_COMMON | {"bias": False, "mlp": "geglu", "norm_place": "around", "qk_norm": False, "rope_local_theta": 0.0},
    theirs={"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False},
    tensors=_by_one(
        (
            EMBEDDING,
            *weights(ATTENTION | MLP),
            *(TensorRow(f"{LAYER}{theirs}.weight", (f"blocks.{ours}.g",)) for theirs, ours in _NORMS.items()),
            *FINAL_NORM_AND_HEAD,
        )
    ),
    told=(*options.ROPE_KEYS, *WINDOW_KEYS, *CAPS, "logit_scale"),
    write=lambda shape: options.rope_to_hf(shape) | _write_common(shape),
    read=_read_gemma2,
    extra={"pad_token_id": None},
    also=("sliding_window", "layer_types", QUERY_SCALE, *CAPS.values()),
    neutral=("hidden_act", "sliding_window_size"),  # of other names for the same
    factors=_factors,
    implied=_implied,
)


def _limit_gemma3(shape: ModelShape) -> dict[str, Any]:
    return whole_heads(shape) | layered_rope_constraints(shape)


GEMMA3 = dataclasses.replace(
    GEMMA2,
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    keys={ours: theirs for ours, theirs in GEMMA2.keys.items() if ours != "rope_theta"},
    absent=GEMMA2.absent | {"max_position_embeddings": 131_072, CAPS["attention_softcap"]: None},
    ours={key: value for key, value in GEMMA2.ours.items() if key != "rope_local_theta"}
    | {"qk_norm": True, "qk_norm_over": "head", "attention_softcap": 0.0},
    theirs=GEMMA2.theirs | {CAPS["attention_softcap"]: None},  # transformers reads it and applies none
    limits=_limit_gemma3,
    tensors=_by_one((*GEMMA2.tensors, *QK_NORMS)),
    told=(*options.ROPE_KEYS, *WINDOW_KEYS, "rope_theta", "rope_local_theta", "logit_softcap", "logit_scale"),
    write=lambda shape: (
        layered_rope_to_hf(shape)
        | _write_common(shape)
        | {"rope_theta": shape.rope_theta, LOCAL_THETA: shape.rope_local_theta or shape.rope_theta}
    ),
    read=_read_gemma3,
    also=(*GEMMA2.also, "rope_theta", LOCAL_THETA, PATTERN),
)


TANH, ACTIVATIONS = "gelu_pytorch_tanh", ("hidden_act", "hidden_activation")


def _read_gemma1(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The first release says `gelu` and means its approximation by tanh, as transformers reads it, too."""
    for name in ACTIVATIONS:
        if (value := content.get(name)) not in (None, TANH) and (name, value) != ("hidden_act", "gelu"):
            raise BadInput(f"{name}={repr(value)[:40]}: only {TANH!r} can be read from gemma")
    return options.rope_from_hf(content, values["seq_len"]) | _read_tied(values)


GEMMA = dataclasses.replace(
    LLAMA,
    name="gemma",
    architecture="GemmaForCausalLM",
    keys=KEYS_WITHOUT_BIAS,
    absent={key: value for key, value in LLAMA.absent.items() if key != "hidden_act"}
    | {"num_key_value_heads": 16, "head_dim": 256, "max_position_embeddings": 8192, "tie_word_embeddings": True},
    ours={key: value for key, value in OURS.items() if key != "logit_scale"}
    | {"bias": False, "mlp": "geglu", "window": 0},
    theirs={"attention_bias": False},
    limits=options.rope_constraints,
    tensors=_by_one((EMBEDDING, *weights(ATTENTION | MLP), *NORMS_AND_HEAD)),
    told=(*options.ROPE_KEYS, "logit_scale"),
    write=lambda shape: options.rope_to_hf(shape) | {"hidden_act": TANH},
    read=_read_gemma1,
    extra={"pad_token_id": None},
    also=ACTIVATIONS,
    implied=_implied,
)
