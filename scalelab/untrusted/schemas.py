"""Schemas of JSON: the types of a file's values, checked as it is read."""

import json
import math
from collections.abc import Mapping
from typing import Any

WHOLE, NUMBER, TEXT = "a whole number", "a number", "text"  # a number may be nan or inf, such as a diverged run's loss
FINITE, FLAG, PAIR = "a finite number", "true or false", "a list of two numbers"
SCALAR, LIST, NUMBERS = "a number, text, true, false or null", "a list", "a number or a list of numbers"
LARGEST_WHOLE = 2**63 - 1
TYPES_OF_KIND: dict[str, tuple[type, ...]] = {
    WHOLE: (int,), NUMBER: (int, float), TEXT: (str,), SCALAR: (int, float, str, bool, type(None)), LIST: (list,),
    NUMBERS: (int, float, list), FINITE: (int, float), FLAG: (bool,), PAIR: (list,),
}  # fmt: skip
# Exact types that need no further check.
_SURE_TYPES = {kind: set(types) - {list} if kind != FINITE else {int} for kind, types in TYPES_OF_KIND.items()}
# key -> kind, (kind, None), [kind] for a list of it, or a Schema; "key?" may be absent, "*" stands for every key.
Schema = Mapping[str, Any]


def describe_mismatch(content: Any, schema: Any, name: str = "") -> str:
    """Describe the first mismatch of `content` and `schema`: `steps is 'ten', not a whole number`; "" without any."""
    if isinstance(schema, tuple):
        return "" if content is None else describe_mismatch(content, schema[0], name)
    if isinstance(schema, str):
        if type(content) in _SURE_TYPES[schema]:
            fits = schema != WHOLE or -LARGEST_WHOLE <= content <= LARGEST_WHOLE
            return "" if fits else f"{name} is {_short(content)}, beyond the {LARGEST_WHOLE} that arrays hold"
        if schema == NUMBERS and isinstance(content, list):
            schema = [NUMBER]
        else:
            return "" if _is_kind(content, schema) else f"{name} is {_short(content)}, not {schema}"
    if isinstance(schema, list):
        if not isinstance(content, list):
            return f"{name} is {_short(content)}, not a list"
        return next((wrong for each in content if (wrong := describe_mismatch(each, schema[0], name))), "")
    if not isinstance(content, dict):
        return f"{name or 'its content'} is {_short(content)}, not an object of keys and values"
    for key, kind in schema.items():
        plain = key.removesuffix("?")
        keys = _other_keys(content, schema, kind) if key == "*" else [plain]
        for at in keys:
            if at in content:
                wrong = describe_mismatch(content[at], kind, f"{name}.{at}" if name else at)
            else:
                wrong = "" if key.endswith("?") else f"{f'{name} has' if name else 'it has'} no {at!r}"
            if wrong:
                return wrong
    return ""


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind not in (SCALAR, FLAG):
        return False
    if kind == PAIR:
        return isinstance(value, list) and len(value) == 2 and all(_is_kind(each, NUMBER) for each in value)
    right = isinstance(value, TYPES_OF_KIND[kind])
    return right and (kind != FINITE or math.isfinite(value))


def _other_keys(content: Mapping[str, Any], schema: Schema, kind: Any) -> list[str]:
    """Find keys outside the schema whose values need a check; most values of metrics are plainly right.

    A whole number is checked: its type does not say whether it is within bounds.
    """
    leaf, none = (kind[0], {type(None)}) if isinstance(kind, tuple) else (kind, set())
    right = none | _SURE_TYPES[leaf] if isinstance(leaf, str) and leaf != WHOLE else none
    return [k for k, v in content.items() if type(v) not in right and k not in schema and f"{k}?" not in schema]


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."
