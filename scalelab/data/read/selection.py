"""Which field of a record is the document, and which records are taken: the end of a `--source`, PATHS[#KEY][?FILTERS].

    corpus.parquet#meta.text?lang=en|de&score>=0.5&sample=0.1:7

The key may lead into nested records (meta.text; a list's items by number). A filter compares a field with values;
`sample=SHARE[:SEED]` keeps documents by a hash of their content and the seed, whatever files stand beside them.
"""

import hashlib
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from scalelab.errors import BadInput

KEY = r"[^/*?#&<>=!|\[\],]+"
SUFFIX = re.compile(rf"(?:#(?P<key>{KEY})?)?(?:\?(?P<filters>[\w.-]+\s*(?:[=<>]|!=).*))?")
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "!=": operator.ne, ">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt,
    "=": operator.eq,
}  # fmt: skip
FILTER = re.compile(r"\s*(?P<key>[\w.-]+)\s*(?P<sign>!=|>=|<=|==|>|<|=)\s*(?P<values>.*?)\s*")
WORDS = {"true": True, "false": False, "null": None}


class Filter(NamedTuple):
    """A comparison of the field `key` with `values`: = and != know several, the others one."""

    key: str
    sign: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key}{self.sign}{'|'.join(self.values)}"

    def holds(self, value: Any) -> bool:
        """Whether a field's value passes. ValueError for an order between a number and what is not one."""
        if self.sign == "!=":
            return not any(_equals(value, text) for text in self.values)
        if self.sign in ("=", "=="):
            return any(_equals(value, text) for text in self.values)
        (bound,) = self.values
        number = _as_number(bound)
        if number is not None:
            value = _as_number(value)
            if value is None:
                raise ValueError("it is not a number")
            return COMPARISONS[self.sign](value, number)
        if not isinstance(value, str):
            raise ValueError("it is not a text")
        return COMPARISONS[self.sign](value, bound)


class Selection(NamedTuple):
    """A source's own key ("": that of --text-key), its filters, and the share and seed of its sample."""

    key: str = ""
    filters: tuple[Filter, ...] = ()
    sample: float = 1.0
    seed: int = 0

    def describe(self) -> str:
        """The canonical text of a selection; "" if all documents under --text-key are taken."""
        sample = [f"sample={self.sample}:{self.seed}"] if self.sample < 1 else []
        conditions = "&".join([*map(str, self.filters), *sample])
        return (f"#{self.key}" if self.key else "") + (f"?{conditions}" if conditions else "")

    def is_sampled(self, content: bytes) -> bool:
        """Whether a document is in the sample: a larger share with the same seed contains a smaller one."""
        if self.sample >= 1:
            return True
        digest = hashlib.sha256(f"sample:{self.seed}:".encode() + hashlib.sha256(content).digest()).digest()
        return int.from_bytes(digest[:8], "big") < self.sample * 2.0**64


EVERYTHING = Selection()


def split_spec(spec: str) -> tuple[str, Selection]:
    """Split a source into its paths and its selection. BadInput lists every fault of the filters.

    A `?` of a glob is followed by no comparison; of a URL (https://) all before `#` is the address.
    """
    start = spec.index("#") if spec.startswith(("http://", "https://")) and "#" in spec else 0
    if start == 0 and spec.startswith(("http://", "https://")):
        return spec, EVERYTHING
    for at in range(start, len(spec)):
        if spec[at] in "#?" and (parts := SUFFIX.fullmatch(spec, at)) and (parts["filters"] or spec[at] == "#"):
            return spec[:at], _parse_selection(spec, parts["key"] or "", parts["filters"] or "")
    return spec, EVERYTHING


def _parse_selection(spec: str, key: str, text: str) -> Selection:
    filters: list[Filter] = []
    samples: list[tuple[float, int]] = []
    faults: list[str] = []
    for part in filter(None, text.split("&")):
        match = FILTER.fullmatch(part)
        if match is None:
            faults.append(f"{part!r} is not KEY=VALUE (also !=, <, <=, >, >=; several values: lang=en|de)")
        elif match["key"] == "sample" and match["sign"] == "=":
            fraction = re.fullmatch(r"(\d*\.?\d+(?:e-?\d+)?)(?::(\d+))?", match["values"])
            if fraction is None or not 0 < float(fraction[1]) <= 1:
                faults.append(f"{part!r} is not a share between 0 and 1 with an optional seed, as in sample=0.1:7")
            else:
                samples.append((float(fraction[1]), int(fraction[2] or 0)))
        else:
            one = Filter(match["key"], match["sign"], tuple(match["values"].split("|")))
            if len(one.values) > 1 and one.sign not in ("=", "==", "!="):
                faults.append(f"{part!r} compares with {len(one.values)} values; only = and != take several")
            filters.append(one)
    if samples[1:]:
        faults.append(f"sample= stands there {len(samples)} times: which share?")
    if faults:
        raise BadInput(f"--source={spec}: {'; '.join(faults)}")
    return Selection(key, tuple(filters), *(samples[0] if samples else ()))


def find_field(record: Any, key: str) -> Any:
    """The value under a key, or along its parts between dots. KeyError names the part that is absent."""
    if isinstance(record, dict) and key in record:
        return record[key]
    if isinstance(record, list) and key.isdecimal() and int(key) < len(record):
        return record[int(key)]
    for first, rest in _heads(key):
        if isinstance(record, dict) and first in record:
            return find_field(record[first], rest)
        if isinstance(record, list) and first.isdecimal() and int(first) < len(record):
            return find_field(record[int(first)], rest)
    raise KeyError(key)


def _heads(key: str) -> Iterator[tuple[str, str]]:
    """The ways to cut a key at one of its dots, shortest head first."""
    return ((key[:at], key[at + 1 :]) for at, letter in enumerate(key) if letter == ".")


def _equals(value: Any, text: str) -> bool:
    if isinstance(value, bool) or value is None:
        return text.lower() in WORDS and WORDS[text.lower()] is value
    if isinstance(value, int | float):
        return _as_number(text) == value
    return isinstance(value, str) and value == text


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
