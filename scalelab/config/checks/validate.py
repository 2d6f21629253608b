"""Single values of a config, held to the ranges and choices of their records; combinations stand in `combinations`."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from scalelab.config import mixture_text
from scalelab.config.keys import key_records
from scalelab.errors import BadInput, nearest_hint
from scalelab.user_code import is_trusted, load_user_object

PARAMETER_GROUPS = (
    "embed",
    "head",
    "position",
    "hidden",
    "vector",
)  # of parameters; `optim/groups.py` says which is which


def check_values(values: Mapping[str, Any]) -> None:
    """Raise BadInput for the first impossible value, in one line: the value, the reason, the nearest good value.

    `values` by key, of the whole tree or of some groups; None is derived later.
    """
    chosen, bounded = _restricted_keys()
    for name in chosen:
        if name in values:
            check_choice(name, values[name])
    for name in bounded:
        if name in values:
            check_range(name, values[name])
    for name, parse in TEXTS.items():
        if name in values:
            parse(values[name])


@functools.cache
def _restricted_keys() -> tuple[list[str], list[str]]:
    """Keys of some values alone, and keys of numbers in a range, each in the tree's order."""
    records = key_records().items()
    chosen = [name for name, record in records if record.tables or record.user_code]
    return chosen, [name for name, record in records if record.range]


def check_choice(name: str, value: Any) -> None:
    """Raise BadInput if the key `name` has choices, and `value` is neither one of them nor the default."""
    record = key_records()[name]
    if value == record.default or value in record.choices or not (record.choices or record.user_code):
        return
    if not isinstance(value, str):
        known = f"; known: {', '.join(map(str, record.choices))}" if record.choices else ""
        raise BadInput(f"{name}={value!r} is not text{known}")
    if (names := record.names_in(value)) != [value]:
        for part in names:
            check_choice(name, part)
        return
    if record.user_code and ":" in value:
        if is_trusted(value):  # otherwise the code that would run it refuses
            load_user_object(value, name)
        return
    if not record.choices:
        raise BadInput(f'{name}={value!r} is not a function\'s name: my_module:my_function, or "" for none')
    close = nearest_hint(value, record.choices)
    listed = "" if "known: " in close else f" Known: {', '.join(record.choices)}"
    raise BadInput(f"{name}={value!r} is not a choice{close}{listed}")


def check_range(name: str, value: Any) -> None:
    """Raise BadInput if `value` lies outside the range of the key `name`; None is derived later."""
    record = key_records()[name]
    if record.range and value is not None and value not in record.range:
        raise BadInput(name + record.range.refusal(value, record.default))


def check_divides(name: str, value: int, axis: str, size: int) -> None:
    """Raise BadInput where `value` of one key can't be split into `size`, that of `axis`: with the nearest of both."""
    if value % size:
        low = value // size * size
        divisor = max(k for k in range(1, size + 1) if value % k == 0)
        nearest = f"nearest {name}: {f'{low} or {low + size}' if low else size}, nearest {axis}: {divisor}"
        raise BadInput(f"{name}={value} is not divisible by {axis}={size}; {nearest}")


def parse_group_multipliers(text: str) -> dict[str, float]:
    """`"embed=0.1,head=0.5"` -> {group: multiplier}. BadInput for an unknown group, or a text that is not a number."""
    multipliers = mixture_text.parse_named_numbers("optim.groups", text, "embed=0.1,head=0.5") if text else {}
    for name in multipliers:
        if name not in PARAMETER_GROUPS:
            raise BadInput(f"optim.groups: {name!r} is not a group of parameters{nearest_hint(name, PARAMETER_GROUPS)}")
    return {name: float(multiplier) for name, multiplier in multipliers.items()}


# What reads a text key, and raises BadInput for one that it can't read.
TEXTS: dict[str, Callable[[str], Any]] = {
    "optim.groups": parse_group_multipliers,
    "data.mixture": mixture_text.parse_mixture,
    "data.unique_tokens": mixture_text.parse_unique_tokens,
}


def parse_profile(text: str) -> tuple[int, int] | None:
    """Parse `log.profile`, `100:103` or `100`, as (first, last) step; None for "". BadInput for anything else."""
    if not text:
        return None
    first, _, last = text.partition(":")
    try:
        window = int(first), int(last or first)
    except ValueError:
        window = (0, 0)
    if not 1 <= window[0] <= window[1]:
        raise BadInput(f"log.profile={text!r} is not FIRST:LAST of steps from 1 on, such as 100:103")
    return window


def check_profile(text: str, steps: int) -> None:
    """Refuse a window of `log.profile` that a run of `steps` steps doesn't have: BadInput."""
    window = parse_profile(text)
    if window and window[1] > steps:
        low = max(1, steps - (window[1] - window[0]))
        raise BadInput(f"log.profile={text!r}: the run has {steps} steps; nearest: {low}:{steps}")
