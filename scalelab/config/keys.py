"""The record of a config key: its default and all that scalelab knows about it, declared in `configs/base.py` alone.

    "peak_lr": key(derived(float), "learning rate at the end of warm-up", range=(0, 1e3), traced=True)

Which keys are traced, which belong to a run's identity, which may change on resume, which values are allowed, and what
`scalelab config` prints are queries on the records. Loading this file needs no jax, numpy or ml_collections.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from scalelab.config.choices import TABLES, table_names
from scalelab.errors import BadInput

if TYPE_CHECKING:
    from ml_collections import ConfigDict


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; `above_low`: without `low`; `positive`: a size, count or scale."""

    low: float
    high: float
    above_low: bool = False
    positive: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above_low else self.low <= value) and value <= self.high and value < math.inf

    def __str__(self) -> str:
        return f"{'(' if self.above_low else '['}{self.low}, {self.high}]"

    def refusal(self, value: float, default: float | None = None) -> str:
        """Why `value` is refused, and the nearest good value; "" if it lies in the range.

        `default`: the key's. It is named where no number is nearest: below an excluded bound, and for nan.
        """
        if value in self:
            return ""
        if self.positive and 0 < value < math.inf:
            return f"={value:.6g} is more than can be counted; nearest: {self.high}"
        if self.positive:
            return f"={value} must be finite and above zero; the nearest good value is 1"
        if math.isnan(value):
            return f"={value} is outside {self}, not a number; nearest: {self._example(default)}"
        if value <= self.low and self.above_low:
            return f"={value} is outside {self}; nearest: a number above {self.low}, such as {self._example(default)}"
        return f"={value} is outside {self}; nearest bound: {self.low if value <= self.low else self.high}"

    def _example(self, default: float | None) -> float:
        """A number in the range: the default if there is one."""
        if default is not None:
            return default
        return min(1.0, self.high) if self.above_low else self.low


COUNT = Range(1, 2**31 - 1, positive=True)  # of steps, sequences and sizes: XLA counts in int32
TOKENS = Range(1, 10**18, positive=True)
POSITIVE = Range(0, math.inf, above_low=True, positive=True)  # a real number above zero, finite


def above(low: float, high: float) -> Range:
    """The range from `low`, itself not included, to `high`."""
    return Range(low, high, above_low=True)


@dataclasses.dataclass(frozen=True)
class Derived:
    """The default of a key that is None until `resolve` derives it: the type of its value."""

    kind: type


derived = Derived


@dataclasses.dataclass(frozen=True)
class Key:
    """One config key, as declared by `key`."""

    default: Any  # None: derived
    kind: type
    meaning: str
    unit: str  # "" for a plain number, a name or a switch
    source: str  # of the default, or of the choices
    range: Range | None
    tables: tuple[str, ...]  # whose names are the choices; () if any text is a value
    user_code: bool  # whether users may pass their own function as pkg.mod:fn
    several: bool  # whether they may pass several, separated by commas
    stacked: bool  # whether several may follow one another, each with its number of layers
    traced: bool  # whether a new value needs no new compilation
    identity: bool  # whether what is computed depends on it
    resume: bool  # whether a run may go on under another value

    @property
    def choices(self) -> tuple[str, ...]:
        """The names in `tables`; () if any text is a value."""
        return tuple(name for tables in self.tables for name in table_names(tables))

    def names_in(self, value: str) -> list[str]:
        """The names in a value: itself, or of several each, without their numbers of layers."""
        parts = value.split(",") if self.several or self.stacked else [value]
        return [(part.partition("=")[0] if self.stacked else part).strip() for part in parts]

    def choices_in(self, table: str) -> tuple[str, ...]:
        """The names in one of the tables, such as `GATED` of `model.mlp`."""
        paths = [tables.partition(":")[0] for tables in self.tables if table in re.split("[:+]", tables)]
        return tuple(name for path in paths for name in table_names(f"{path}:{table}"))


def key(
    default: Any,
    meaning: str,
    *,
    unit: str = "",
    source: str = "",
    range: Range | tuple[float, float] | None = None,
    choices: str = "",
    user_code: bool = False,
    several: bool = False,
    stacked: bool = False,
    traced: bool = False,
    identity: bool = True,
    resume: bool | None = None,
) -> Key:
    """The record of a key. `choices`: the tables whose names they are, by file, separated by blanks.

    Unless `resume` says otherwise, a run may go on under another value of what is traced or computes nothing.
    """
    kind = default.kind if isinstance(default, Derived) else type(default)
    for table in choices.split():
        if not TABLES.fullmatch(table):
            raise BadInput(
                f"configs/base.py: choices={choices!r}: {table!r} is not a table: choices are the names in a table of "
                "functions, written as its file and name, such as model/layers.py:GATED"
            )
    return Key(
        None if isinstance(default, Derived) else default,
        kind,
        meaning,
        unit,
        source,
        Range(*range) if isinstance(range, tuple) else range,
        tuple(choices.split()),
        user_code,
        several,
        stacked,
        traced,
        identity,
        (traced or not identity) if resume is None else resume,
    )


number = functools.partial(key, traced=True)
setting = functools.partial(key, identity=False)
Records = Mapping[str, Key]


def build_tree(table: Mapping[str, Records]) -> "ConfigDict":
    """The tree of defaults, from records by group and name."""
    from ml_collections import ConfigDict

    return _fill(ConfigDict(), {group: build_group(records) for group, records in table.items()})


def build_group(records: Records) -> "ConfigDict":
    """One group of the tree of defaults; what is derived is None, with its type."""
    from ml_collections import ConfigDict
    from ml_collections.config_dict import placeholder

    values = {name: placeholder(r.kind) if r.default is None else r.default for name, r in records.items()}
    return _fill(ConfigDict(), values)


def _fill(config: "ConfigDict", values: Mapping[str, Any]) -> "ConfigDict":
    """Set values in an empty tree item by item: its constructor sets attributes, in four times the time."""
    for name, value in values.items():
        config[name] = value
    return config


@functools.cache
def key_records() -> MappingProxyType[str, Key]:
    """`{"group.name": record}` of `configs/base.py`, in its order; read-only."""
    from scalelab.configs import base  # here and not above: the tree is configuration, and it imports this file

    return MappingProxyType(
        {f"{group}.{name}": record for group, records in base.KEYS.items() for name, record in records.items()}
    )


@functools.cache
def default_values() -> MappingProxyType[str, Any]:
    """`{"group.name": default}`, None for what is derived; read-only.

    Not among them is `optim.own`, whose keys are those of the numbers in it.
    """
    values = {name: record.default for name, record in key_records().items() if record.kind is not dict}
    return MappingProxyType(values)


@functools.cache
def traced_keys() -> tuple[str, ...]:
    """Keys whose values are traced: trials that differ only in these share a compiled program.

    Not among them are the numbers in `optim.own`, which depend on the config (`traced.traced_names`).
    """
    return tuple(name for name, record in key_records().items() if record.traced and record.kind is not dict)


@functools.cache
def hparam_keys() -> tuple[str, ...]:
    """Traced keys that reach the step: all but lengths in tokens or shares, which are resolved into steps."""
    return tuple(name for name in traced_keys() if key_records()[name].identity)


@functools.cache
def fixed_keys() -> tuple[str, ...]:
    """Keys that may not change on resume: a run that went on under another value would be another run."""
    return tuple(name for name, record in key_records().items() if not record.resume)


@functools.cache
def fixed_groups() -> tuple[str, ...]:
    """Groups none of whose identifying keys may change on resume: the name of such a group can stand for its keys."""
    by_group: dict[str, list[Key]] = {}
    for name, record in key_records().items():
        if record.identity:
            by_group.setdefault(name.split(".")[0], []).append(record)
    return tuple(group for group, records in by_group.items() if not any(record.resume for record in records))
