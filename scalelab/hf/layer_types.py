"""Options of config.json that differ by layer: lists of kinds of attention, and RoPE's parameters of each kind.

Ours are periodic: every n-th layer, counted from 1, is special. Another pattern is refused by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.hf import options
from scalelab.model.stacks import all_layer_flags

MOST_LAYERS = 10_000  # of a config.json whose layers differ
FULL, SLIDING = "full_attention", "sliding_attention"
WINDOW_KEYS = ("window", "global_every")  # keys of config.model that `window_to_hf` and `window_from_hf` convert
ROPE_GROUP = "rope_parameters"
LOCAL_THETA = "rope_local_base_freq"  # Gemma 3's in transformers 4


def check_layer_count(values: Mapping[str, Any]) -> int:
    """The number of layers, before any is listed."""
    count = values["n_layers"]
    if not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= MOST_LAYERS:
        raise BadInput(f"num_hidden_layers={repr(count)[:40]} is not a whole number from 1 to {MOST_LAYERS}")
    return count


def special_every(special: Sequence[bool], name: str) -> int:
    """n if every n-th layer and no other is special, 0 if none is. BadInput, with config.json's `name`, if neither."""
    every = special.index(True) + 1 if True in special else 0
    if every and any(is_special != (number % every == 0) for number, is_special in enumerate(special, 1)):
        raise BadInput(f"{name} of {len(special)} layers differ without a period: read is every n-th layer of its own")
    return every


def list_layer_types(shape: ModelShape) -> list[str]:
    """`layer_types` of config.json."""
    is_global = all_layer_flags(shape).is_global
    if is_global is None:
        return [SLIDING if shape.window else FULL] * shape.n_layers
    return [FULL if one else SLIDING for one in is_global]


def window_to_hf(shape: ModelShape) -> dict[str, Any]:
    """Convert the window and the layers that have it."""
    return {"sliding_window": shape.window or None, "layer_types": list_layer_types(shape)}


def window_from_hf(
    content: Mapping[str, Any], values: Mapping[str, Any], window: Any, absent: Sequence[str]
) -> dict[str, Any]:
    """Read WINDOW_KEYS of a model whose `window` is this (None: there is none); `absent`: layer_types where it is."""
    kinds = content.get("layer_types")
    kinds = list(absent) if kinds is None else kinds
    known = isinstance(kinds, list) and all(kind in (FULL, SLIDING) for kind in kinds)
    if not known or len(kinds) != values["n_layers"]:
        raise BadInput(
            f"layer_types={repr(kinds)[:60]} is not a list of {values['n_layers']} times {FULL!r} or {SLIDING!r}"
        )
    if SLIDING not in kinds or window is None:
        return {"window": 0, "global_every": 0}
    return {"window": window, "global_every": special_every([kind == FULL for kind in kinds], "layer_types")}


def layered_rope_to_hf(shape: ModelShape) -> dict[str, Any]:
    """Convert RoPE's options where layers with a window have their own: transformers 5 has a group for each kind.

    What transformers 4 reads, `rope_theta` and `rope_scaling`, stands beside it.
    """
    groups = options.rope_to_hf(shape)
    full = {name.removeprefix(f"{ROPE_GROUP}."): v for name, v in groups.items() if name.startswith(f"{ROPE_GROUP}.")}
    local = {"rope_type": "default", "rope_theta": shape.rope_local_theta or shape.rope_theta}
    flat = {name: value for name, value in groups.items() if not name.startswith(f"{ROPE_GROUP}.")}
    return flat | {ROPE_GROUP: {FULL: full | {"rope_theta": shape.rope_theta}, SLIDING: local}}


def layered_rope_constraints(shape: ModelShape) -> dict[str, Any]:
    """Values required of a shape: layers with a window are never scaled."""
    limits = options.rope_constraints(shape)
    if shape.window and not shape.global_every:
        limits["rope_scaling"] = "none"
    if shape.window and shape.global_every and shape.rope_scaling != "none" and not shape.rope_local_theta:
        limits["rope_local_theta"] = shape.rope_theta
    return limits


def layered_rope_from_hf(
    content: Mapping[str, Any], values: Mapping[str, Any], theta: float, local_theta: float
) -> dict[str, Any]:
    """Read RoPE's options; `theta`, `local_theta`: where config.json has none, of layers without and with a window."""
    groups = content.get(ROPE_GROUP)
    groups = {} if groups is None else groups
    if not isinstance(groups, dict) or not {FULL, SLIDING}.issuperset(groups):
        raise BadInput(f"{ROPE_GROUP}={repr(groups)[:60]} has no group for each of {FULL} and {SLIDING}")
    full, local = (groups.get(kind) or {} for kind in (FULL, SLIDING))
    flat = {key: value for key, value in content.items() if key != ROPE_GROUP} | ({ROPE_GROUP: full} if full else {})
    read = options.rope_from_hf(flat, values["seq_len"])
    options.rope_from_hf({ROPE_GROUP: local} if local else {}, values["seq_len"])
    if local.get("rope_type", "default") != "default":
        raise BadInput(f"{ROPE_GROUP}.{SLIDING}.rope_type={local['rope_type']!r}: only 'default' can be read")
    theta = _theta(f"{ROPE_GROUP}.{FULL}.rope_theta", full.get("rope_theta"), content.get("rope_theta"), theta)
    local_theta = _theta(
        f"{ROPE_GROUP}.{SLIDING}.rope_theta", local.get("rope_theta"), content.get(LOCAL_THETA), local_theta
    )
    is_apart = theta != local_theta or read["rope_scaling"] != "none"
    return read | {"rope_theta": theta, "rope_local_theta": local_theta if is_apart else 0.0}


def _theta(name: str, nested: Any, flat: Any, absent: float) -> float:
    if nested is not None and flat is not None and nested != flat:
        raise BadInput(f"{name}={nested!r} and rope_theta={flat!r}: they must agree")
    value = next((v for v in (nested, flat) if v is not None), absent)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e12:
        raise BadInput(f"{name}={repr(value)[:40]} is not a number from 0 to 1e12")
    return float(value)
