"""Numbers as people write them: `7B`, `20k`, `1,234,567`, `1 234 567`, and in tables `2,51` beside semicolons.

A cell that Python reads as a number, in a table whose decimal mark is a point, is that number. Cells read in another
way are counted in `ReadAs`, so that the reader of a fit learns of it; a cell with two meanings raises ValueError.
"""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

SUFFIXES = {"k": 3, "m": 6, "b": 9, "g": 9, "t": 12}  # suffixes of counts only: 50M parameters, 1.3B tokens
COUNTS = ("N", "D", "C", "U")
_SUFFIXED = re.compile(r"(.*\d[.,]?)\s*([kmbgt])", re.IGNORECASE | re.DOTALL)
_BLANKS = " \u00a0\u202f\u2009'\u2019"  # separators of thousands, besides marks
_SPACED = re.compile(rf"[+-]?\d{{1,3}}(?:[{_BLANKS}]\d{{3}})+(?:[.,]\d*)?")
_MARKED = re.compile(r"[+-]?[\d.,]*[.,][\d.,]*(?:e[+-]?\d+)?", re.IGNORECASE)
_NUMERIC = re.compile(rf"[+-]?(?:[\d.,_{_BLANKS}]+(?:e[+-]?\d+)?\s*[kmbgt]?|nan|inf)", re.IGNORECASE)
_ONE_GROUP = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")  # 1,234 is ambiguous: a thousand, or a little more than one


class ReadAs(NamedTuple):
    """The reading of a column's first unusual cell, and the number of such cells."""

    text: str
    value: float
    cells: int


def looks_numeric(cell: object) -> bool:
    """Whether a cell may be a number in any way of writing."""
    return not isinstance(cell, str) or bool(_NUMERIC.fullmatch(cell.strip()))


def find_decimal_mark(cells: Iterable[tuple[str, str]]) -> str:
    """Find the decimal mark of a table from its cells (field, text): "." or ","; "" if they contradict each other.

    `2,5`, `0,123`, `1.234,5` and `1.234.567` tell of a comma; `2.5` and `1,234,567` tell of a point. `1,234` tells
    nothing, except as a loss: no loss has a thousand nats. "" also if nothing tells and a comma is there.
    """
    texts = list(cells)
    if not any("," in text or text.count(".") > 1 for _, text in texts):  # decides the usual table fast
        return "."
    marks, unclear = set(), False
    for field, text in texts:
        body = _body_of(text)[0]
        if not _MARKED.fullmatch(body):
            continue
        if _ONE_GROUP.fullmatch(body) and field != "loss":
            unclear |= "," in body
            continue
        last = max(body, key=lambda mark: body.rfind(mark) if mark in ".," else -1)
        marks.add(last if body.count(last) == 1 else {".": ",", ",": "."}[last])
    return "" if len(marks) > 1 or (unclear and not marks) else next(iter(marks), ".")


def is_count(field: str) -> bool:
    """Whether a field counts parameters, tokens or FLOPs: N, D, C, U and their kinds, as N_active."""
    return field.partition("_")[0] in COUNTS


def parse_number(text: str, field: str, mark: str = ".") -> float:
    """Parse a cell of `field` in a table of this decimal mark. ValueError, with the reason, for anything else."""
    text = text.strip()
    if mark != "," and _as_python(text) is not None:
        return float(text)
    body, power = _body_of(text)
    if power and not is_count(field):
        raise ValueError(f"is not a number: k, M, B and T are read in {', '.join(COUNTS)} only")
    if "," in body and not mark:
        raise ValueError("has two meanings: a decimal comma, or thousands? Write the table's numbers in one way")
    grouping = "." if mark == "," else ","
    whole = body.partition(mark or ".")[0]
    if grouping in body and not (re.fullmatch(rf"[+-]?\d{{1,3}}(?:{re.escape(grouping)}\d{{3}})+", whole)):
        raise ValueError("is not a number")
    number = body.replace(grouping, "").replace(mark or ".", ".")
    value = _as_python(f"{number}e{power}" if power else number)
    if value is None:
        raise ValueError("is not a number")
    return value


def parse_count(text: str) -> float:
    """Parse a count in an option or a config value as a table's N, D, C and U: `7B`, `1.4T`, `20k`, `1e9`, `1,000,000`.

    The decimal mark is a point. ValueError, with the reason, for anything else.
    """
    return parse_number(text, COUNTS[0])


def parse_whole(text: str) -> int:
    """Parse a whole number like `parse_count`; digits alone are exact at any length. ValueError for anything else."""
    digits = text.strip().replace("_", "")
    if re.fullmatch(r"[+-]?\d+", digits):
        return int(digits)
    value = parse_count(text)
    if not math.isfinite(value) or value != int(value):
        raise ValueError("is not a whole number")
    return int(value)


def is_plain(text: str, value: float) -> bool:
    """Whether Python reads the same value from the text, without underscores."""
    read = _as_python(text)
    return "_" not in text and read is not None and (read == value or read != read)  # nan is not equal to itself


def _as_python(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _body_of(text: str) -> tuple[str, int]:
    """Split off (the number without blanks between thousands and suffix, the suffix's power of ten)."""
    text, power = text.strip(), 0
    if suffixed := _SUFFIXED.fullmatch(text):
        text, power = suffixed[1].strip(), SUFFIXES[suffixed[2].lower()]
    return (re.sub(f"[{_BLANKS}]", "", text) if _SPACED.fullmatch(text) else text), power
