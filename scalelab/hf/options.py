"""Write and read attention's options in config.json: scaling of rope, and Mistral's window.

transformers 4 has `rope_scaling` beside `rope_theta`, transformers 5 one `rope_parameters` with both
(modeling_rope_utils.py). Both are written, either is read.
"""

from collections.abc import Mapping
from typing import Any

from scalelab.config import ModelShape
from scalelab.errors import BadInput
from scalelab.model.attention.positions.rotary import FAST, HIGH, LOW, SLOW

ROPE_KEYS = (
    "rope_scaling",
    "rope_factor",
    "rope_original",
)  # keys of config.model that `rope_to_hf` and `rope_from_hf` convert
HF_ROPE_GROUPS = ("rope_scaling", "rope_parameters")
ORIGINAL_LENGTH_KEY = "original_max_position_embeddings"
KINDS_WITH_ORIGINAL = ("llama3", "yarn")
# Constants of ours that transformers reads from the file.
FIXED_ROPE_VALUES: dict[str, dict[str, Any]] = {
    "linear": {},
    "llama3": {"low_freq_factor": LOW, "high_freq_factor": HIGH},
    "yarn": {"beta_fast": FAST, "beta_slow": SLOW},
}
ALLOWED_ROPE_VALUES = {"yarn": {"truncate": True}}  # keys that config.json may have with this value only
# Scales of yarn's factor on RoPE's numbers, and on whole logits: latent attention rotates only a part. Equal, they
# cancel in the former.
MSCALES = ("mscale", "mscale_all_dim")


def rope_to_hf(shape: ModelShape) -> dict[str, Any]:
    """Convert rope's options to config.json's names; dots lead into objects."""
    kind = shape.rope_scaling
    if kind == "none":
        return {"rope_parameters.rope_type": "default"}
    content = {"rope_type": kind, "factor": shape.rope_factor} | FIXED_ROPE_VALUES[kind]
    content |= {ORIGINAL_LENGTH_KEY: shape.rope_original} if kind in KINDS_WITH_ORIGINAL else {}
    return {f"{group}.{key}": value for group in HF_ROPE_GROUPS for key, value in content.items()}


def rope_constraints(shape: ModelShape) -> dict[str, Any]:
    """Values required of a shape: transformers has no fixed ntk; its version 4 takes yarn's factor from the lengths."""
    if shape.rope_scaling not in ("none", *FIXED_ROPE_VALUES):
        return {"rope_scaling": "none"}
    return {"seq_len": round(shape.rope_factor * shape.rope_original)} if shape.rope_scaling == "yarn" else {}


def rope_from_hf(content: Mapping[str, Any], seq_len: Any, with_mscale: bool = False) -> dict[str, Any]:
    """Read rope's options as values of config.model; `with_mscale`: yarn has both MSCALES, equal.

    BadInput, by config.json's name, for an unsupported function.
    """
    groups = {name: _group(name, content[name]) for name in HF_ROPE_GROUPS if content.get(name) is not None}
    kinds = {name: group["rope_type"] for name, group in groups.items()}
    if len(set(kinds.values())) > 1:
        raise BadInput(f"{' and '.join(f'{name} is {kind!r}' for name, kind in kinds.items())}: they must agree")
    read = {name: _values(name, group, seq_len, with_mscale) for name, group in groups.items()}
    if len({repr(values) for values in read.values()}) > 1:
        raise BadInput(f"{' and '.join(f'{name}={values}' for name, values in read.items())}: they must agree")
    return next(iter(read.values()), {"rope_scaling": "none"})


def _group(name: str, group: Any) -> dict[str, Any]:
    if not isinstance(group, dict):
        raise BadInput(f"{name}={repr(group)[:40]} is not an object")
    kind = group.get("rope_type") or group.get("type") or "default"
    if kind != "default" and (not isinstance(kind, str) or kind not in FIXED_ROPE_VALUES):
        readable = ", ".join(FIXED_ROPE_VALUES)
        raise BadInput(f"{name}.rope_type={repr(kind)[:40]}: only {readable} and 'default' can be read")
    return {key: value for key, value in group.items() if key not in ("type", "rope_theta")} | {"rope_type": kind}


def _values(name: str, group: dict[str, Any], seq_len: Any, with_mscale: bool) -> dict[str, Any]:
    kind, rest = group["rope_type"], {key: value for key, value in group.items() if key != "rope_type"}
    if kind == "default":
        return {"rope_scaling": "none"} | _refuse(name, rest, {"partial_rotary_factor": 1.0})
    factor, original = rest.pop("factor", None), rest.pop(ORIGINAL_LENGTH_KEY, seq_len)
    for key, value in (("factor", factor), (ORIGINAL_LENGTH_KEY, original)):
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 2**31:
            raise BadInput(f"{name}.{key}={repr(value)[:40]} is not a number from 0 to 2^31")
    if kind == "yarn" and factor * original != seq_len:
        raise BadInput(
            f"{name}: factor={factor:g} x {ORIGINAL_LENGTH_KEY}={original} is not max_position_embeddings={seq_len}: "
            "transformers 4 and 5 "
            "read that as two models"
        )
    known = (
        FIXED_ROPE_VALUES[kind]
        | ALLOWED_ROPE_VALUES.get(kind, {})
        | {"attention_factor": None, "partial_rotary_factor": 1.0}
        | dict.fromkeys(MSCALES)
    )
    scale = _take_mscale(name, rest) if with_mscale and kind == "yarn" else {}
    if kind == "llama3" and (missing := [key for key in FIXED_ROPE_VALUES[kind] if key not in rest]):
        raise BadInput(f"{name}.{missing[0]} is missing")
    _refuse(name, rest, known)
    values = {"rope_scaling": kind, "rope_factor": float(factor), **scale}
    return values | ({"rope_original": original} if kind in KINDS_WITH_ORIGINAL else {})


def _take_mscale(name: str, rest: dict[str, Any]) -> dict[str, Any]:
    """Take both MSCALES out of `rest`, as `rope_mscale`."""
    first, second = (rest.pop(key, None) for key in MSCALES)
    is_number = isinstance(first, int | float) and not isinstance(first, bool) and 0 < first <= 1e3
    if not is_number or first != second:
        raise BadInput(
            f"{name}.{MSCALES[0]}={repr(first)[:40]} and {MSCALES[1]}={repr(second)[:40]}: with yarn both must be one "
            "positive number"
        )
    return {"rope_mscale": float(first)}


def _refuse(name: str, rest: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in rest.items():
        if value is not None and (key not in known or value != known[key]):
            wanted = f"only {known[key]!r} can be read" if key in known else "no such option here"
            raise BadInput(f"{name}.{str(key)[:40]}={repr(value)[:40]}: {wanted}")
    return {}


def read_flag(content: Mapping[str, Any], name: str) -> bool:
    """Read a truth value: false if the key is absent or null."""
    value = content.get(name)
    if not isinstance(value, bool | None):
        raise BadInput(f"{name}={repr(value)[:40]} is not true or false")
    return bool(value)


def parse_window(content: Mapping[str, Any]) -> dict[str, Any]:
    """Read Mistral's window of all layers: 4096 tokens if the key is absent, no window if it is null."""
    value = content.get("sliding_window", 4096)
    if content.get("layer_types") is not None:
        raise BadInput("layer_types is set: layers that differ can't be read from mistral")
    return {"window": 0 if value is None else value}
