"""The traced half of a config: scalars that change without recompiling, as a record by group: `h.optim.peak_lr`.

A number has the name of its key in `configs/base.py`: keys of one name in two groups are two numbers. `h` also holds:

`h.optim.own.NAME`     numbers of a user's own optimizer
`h.log.every_steps`    in a run that measures layers also `h.log.layers_every` and `h.log.layers_after_alarm`
`h.dataset.separator`  in a run: the id that ends a document
`h.step.lr`            in the update of a step: its LR; `h.optim.beta1` and `h.optim.weight_decay` are the step's there
"""

import collections
import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from scalelab.config.files import USER_OPTIM_PREFIX, leaves
from scalelab.config.keys import hparam_keys
from scalelab.config.static import Optim
from scalelab.errors import BadInput, nearest_hint

if TYPE_CHECKING:
    from ml_collections import ConfigDict

LAYERS_NUMBERS = ("log.layers_every", "log.layers_after_alarm")  # traced where layers are measured
DERIVED_GROUPS = ("dataset", "step")  # groups of numbers that are not keys of the config
OLD_NAMES = {"log_every": "every_steps"}  # of version 0.2, where `h` was a flat dict, if not the last part of the key


class Hparams(tuple[Any, ...]):
    """The numbers, or those of a group, by attribute. A named tuple, so that jax maps over it; read by `h.group.name`.

    A name that is not there is BadInput with the right one, since a silent 0 would train something else.
    """

    _fields: tuple[str, ...]
    _path = "h"
    _reader = "this function"  # the reader of a number, for the refusal's text

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise BadInput(_describe_missing(self, name, f"{self._path}.{name}"))

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, str):
            raise BadInput(_describe_missing(self, place, f"{self._path}[{place!r}]"))
        return super().__getitem__(place)

    def __contains__(self, name: Any) -> bool:
        raise BadInput(f"{name!r} in {self._path}: numbers are read by name, such as h.optim.peak_lr, and never absent")

    def __or__(self, other: Any) -> Any:
        raise BadInput(f"{self._path} | …: use scalelab.config.replace_hparams(h, {{'optim.peak_lr': 1e-3}})")


def _describe_missing(record: Hparams, name: str, spelling: str) -> str:
    """Explain why `record` lacks `name`, written as `spelling`, and how to read or set the number."""
    keys = list(dict.fromkeys([*_walk_keys(record), *hparam_keys()]))
    key = f"{record._path}.{name}".removeprefix("h.")
    if key in keys or key.startswith(USER_OPTIM_PREFIX):
        if spelling != f"h.{key}":
            return f"{spelling} is written h.{key}"
        return f"{record._reader} reads h.{key}, which is not set: --config.{key}=VALUE"
    if same := [each for each in keys if each.rpartition(".")[2] == OLD_NAMES.get(name, name)]:
        return f"{spelling} is written {' or '.join(f'h.{each}' for each in same)}"
    if record._path == "h.optim":
        return f"{spelling}: no such number; one of your own is h.{USER_OPTIM_PREFIX}{name}"
    hint = nearest_hint(name, keys) or "; a number is read by its key, such as h.optim.peak_lr"
    return f"{spelling}: no such number{hint}"


def _walk_keys(record: Hparams) -> Iterator[str]:
    """Yield the keys of a record's numbers, in order."""
    for name, value in zip(record._fields, record, strict=True):
        if isinstance(value, Hparams):
            yield from _walk_keys(value)
        else:
            yield f"{record._path}.{name}".removeprefix("h.")


@functools.cache
def _record_type(path: str, names: tuple[str, ...], reader: str) -> Any:
    fields: Any = collections.namedtuple  # names that are known only here
    attributes = {"__slots__": (), "_path": path, "_reader": reader}
    return type(path, (Hparams, fields(path.rpartition(".")[2], names)), attributes)


def group_hparams(values: Mapping[str, Any], reader: str = Hparams._reader) -> Hparams:
    """Make the record of `{"optim.peak_lr": value}`. `reader`: who reads it, named when a number is missing."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *groups, name = key.split(".")
        part = functools.reduce(lambda node, group: node.setdefault(group, {}), groups, tree)
        part[name] = value
    if "optim" in tree:
        tree["optim"].setdefault("own", {})

    def record(path: str, part: dict[str, Any]) -> Hparams:
        names = tuple(sorted(part))  # sorted, so that equal numbers always make equal pytrees
        parts = [record(f"{path}.{n}", part[n]) if isinstance(part[n], dict) else part[n] for n in names]
        result: Hparams = _record_type(path, names, reader)(*parts)
        return result

    return record("h", tree)


def flatten_hparams(h: Hparams) -> dict[str, Any]:
    """`{"optim.peak_lr": value}` of a record, in its order."""
    values: list[Any] = []

    def collect(record: Hparams) -> None:
        for value in record:
            collect(value) if isinstance(value, Hparams) else values.append(value)

    collect(h)
    return dict(zip(_walk_keys(h), values, strict=True))


def replace_hparams(h: Hparams, values: Mapping[str, Any]) -> Hparams:
    """Replace values of `h` by key: `{"optim.peak_lr": 1e-3}`. Only groups in `DERIVED_GROUPS` may get new keys."""
    known = flatten_hparams(h)
    for key in values:
        if key not in known and key.partition(".")[0] not in DERIVED_GROUPS:
            raise BadInput(f"h.{key}: no such number to replace{nearest_hint(key, known)}")
    return group_hparams(known | dict(values), h._reader)


def traced_names(o: Optim) -> list[str]:
    """Keys of the numbers that a program with the optimizer `o` gets, besides those of logging and data."""
    return [*hparam_keys(), *(USER_OPTIM_PREFIX + name for name in o.own)]


def hparams(config: "ConfigDict") -> Hparams:
    """The traced half of a resolved config: scalars that change without recompiling."""
    values = leaves(config)
    # An option that an optimizer lacks is None in the config, and here a zero that nothing reads.
    given = {key: 0.0 if values[key] is None else values[key] for key in hparam_keys()}
    given |= {"schedule.decay_steps": 0.0} if config.schedule.name == "constant" else {}
    given |= {key: values[key] for key in LAYERS_NUMBERS} if config.log.layers_every else {}
    given |= {key: value for key, value in values.items() if key.startswith(USER_OPTIM_PREFIX)}
    if taken := {key.partition(".")[0] for key in given}.intersection(DERIVED_GROUPS):
        group = min(taken)
        raise BadInput(f"configs/base.py: a group {group!r} with traced keys: h.{group} holds derived numbers")
    return group_hparams(given | {"log.every_steps": config.log.every_steps})
