"""Rows of claims.toml: a text of a page with {} where its numbers stand, and the source that these are read from.

A row names one source: `result` (a JSON file of results, or the page beside it), `code` (a file of ours that holds the
value), `printed` (a command whose output is kept in checks/results/printed.json), `formula` (closed form), `published`
(paper and place), `test` (FILE::FUNCTION, which computes the page's numbers) or `missing` (why there is none).

`values` are Python expressions of `r`, what the JSON file holds; `holds` are texts of the source with {} for its
numbers, `n` in `values` if both are given; `count` is a pattern whose occurrences are the number. A number may differ
by half a unit of its last digit, or by `tolerance`. `where` says where it holds, if not everywhere.
"""

import functools
import json
import math
import pathlib
import re
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scalelab.experiments.fingerprint import read_fingerprint
from tests.claims.prose import WORDS

ROOT = pathlib.Path(__file__).parents[2]
TABLE = pathlib.Path(__file__).with_name("claims.toml")
PRINTED = ROOT / "checks" / "results" / "printed.json"
KINDS = ("result", "code", "printed", "formula", "published", "test", "missing")
WRITTEN = r"([-+−]?[\d,_]*\.?\d+|[A-Za-z]+(?:-[a-z]+)?)"  # a number in digits, or a word
RESULTS = ("checks/results/", "experiments/results/")
HELPERS = {"fmean": statistics.fmean, "median": statistics.median, "sqrt": math.sqrt, "log": math.log, "pi": math.pi}
FIELDS = {"page", "text", *KINDS, "values", "holds", "count", "tolerance", "where"}


class Wrong(Exception):
    """A row that can't be compared, with its reason."""


class Span(NamedTuple):
    """Where a row's text stands in its page, and each of its numbers: (start, end)."""

    start: int
    end: int
    numbers: list[tuple[int, int]]


def read_table(path: pathlib.Path = TABLE) -> tuple[list[dict[str, Any]], int]:
    """The rows of the table, and how many of them may be missing."""
    table = tomllib.loads(path.read_text())
    return table["claim"], table["missing_at_most"]


def kind_of(row: Mapping[str, Any]) -> str:
    """The kind of a row; `missing` also where its source is a page, the number, or a result without a fingerprint."""
    named = [kind for kind in KINDS if kind in row]
    if len(named) != 1 or set(row) - FIELDS:
        unknown = sorted(set(row) - FIELDS)
        raise Wrong(f"names {named or 'no source'} and {unknown}; one of {', '.join(KINDS)} is wanted")
    (kind,) = named
    source = str(row[kind])
    if kind == "result":
        return kind if source.startswith(RESULTS) and read_fingerprint(ROOT / source) else "missing"
    if kind == "code":
        return "missing" if source.endswith(".md") else kind
    if kind == "published":
        return kind if re.search(r"\b(?:19|20)\d\d\b", source) and source not in row["text"] else "missing"
    if kind == "formula":
        return "missing" if all(re.fullmatch(r"[\d._]+", value) for value in row["values"]) else kind
    return kind


def find_text(page: str, text: str, where: str = "the page") -> Span:
    """Where `text` stands in `page`, with a number at each {}. Wrong unless it stands there once."""
    matches = list(_pattern(text).finditer(page))
    if len(matches) != 1:
        raise Wrong(f"{where} has it {len(matches)} times: {text!r}")
    (match,) = matches
    return Span(match.start(), match.end(), [match.span(i + 1) for i in range(len(match.groups()))])


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    words = (re.escape(word).replace(r"\{\}", WRITTEN) for word in text.split())
    return re.compile(r"\s+".join(words))


def read_number(text: str) -> float:
    """The value of a written number: digits with commas, or a word up to fifty. Wrong where it is neither."""
    if text[-1].isalpha() and text.lower() not in WORDS:
        raise Wrong(f"{text!r} is not a number")
    return WORDS[text.lower()] if text.lower() in WORDS else float(re.sub(r"[,_]", "", text).replace("−", "-"))


def source_values(row: Mapping[str, Any]) -> list[float] | None:
    """What the source says for each {} of the row; None for kinds that only name their source."""
    kind = next(kind for kind in KINDS if kind in row)
    if kind in ("published", "missing"):
        return None
    if kind == "test":
        return _check_test(row[kind])
    if kind == "formula":
        return [float(eval(text, dict(HELPERS))) for text in row["values"]]
    if kind == "printed":
        printed = _load(PRINTED)
        if row[kind] not in printed["outputs"]:
            raise Wrong(f"{row[kind]} was not run yet: python -m tests.claims --run")
        return _values(row, printed["outputs"][row[kind]])
    path = ROOT / row[kind]
    if not path.is_file():
        raise Wrong(f"{row[kind]} is not there")
    return _values(row, path.read_text(), path)


def _check_test(name: str) -> None:
    file, _, function = name.partition("::")
    if f"def {function}(" not in (ROOT / file).read_text():
        raise Wrong(f"{name} is not there")


def _values(row: Mapping[str, Any], text: str, path: pathlib.Path | None = None) -> list[float]:
    if "count" in row:
        return [float(len(re.findall(row["count"], text, re.MULTILINE)))]
    numbers = []
    for held in row.get("holds", ()):
        span = find_text(text, held, "its source")
        numbers += [read_number(text[start:end]) for start, end in span.numbers]
    if "values" not in row:
        return numbers
    names = HELPERS | {"n": numbers} | ({"r": _load(path)} if path and path.suffix in (".json", ".jsonl") else {})
    try:
        return [float(eval(expression, dict(names))) for expression in row["values"]]
    except Exception as error:  # the table is ours, but what it says of a result may be out of date in any way
        raise Wrong(f"{row['values']}: {type(error).__name__}: {error}") from error


@functools.cache
def _load(path: pathlib.Path) -> Any:
    text = path.read_text()
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)


def compare(row: Mapping[str, Any], page: str, span: Span) -> list[tuple[tuple[int, int], float]]:
    """The numbers of the page that disagree with the row's source: (place, value there)."""
    values = source_values(row)
    if values is None:
        return []
    if len(values) != len(span.numbers):
        raise Wrong(f"has {len(span.numbers)} numbers, its source {len(values)}")
    written = [page[start:end] for start, end in span.numbers]
    places = zip(span.numbers, values, written, strict=True)
    return [(place, value) for place, value, text in places if not agree(text, value, row.get("tolerance"))]


def agree(text: str, value: float, tolerance: float | None = None) -> bool:
    """Whether a written number is `value`, rounded to the digits that are written, or within a tolerance."""
    unit = 0.5 * 10.0 ** -len(text.partition(".")[2]) if text[-1].isdigit() else 0.5
    return abs(read_number(text) - value) <= (unit * (1 + 1e-6) if tolerance is None else tolerance)


def write_like(text: str, value: float) -> str:
    """`value` with the decimals, commas, sign and bare point of the written number."""
    names = {number: word for word, number in WORDS.items()}
    if not text[-1].isdigit() and round(value) in names:
        word = names[round(value)]
        return word.capitalize() if text[0].isupper() else word
    decimals = len(text.partition(".")[2]) if text[-1].isdigit() else 0
    comma = "," if "," in text or value >= 10_000 else ""
    digits = f"{value:{'+' if text[0] == '+' else ''}{comma}.{decimals}f}"
    return digits.replace("0.", ".", 1) if text.lstrip("+-−").startswith(".") and abs(value) < 1 else digits


def rewrite(page: str, changes: Sequence[tuple[tuple[int, int], float]]) -> str:
    """The page with each number at its place replaced by a value, written like it was."""
    for (start, end), value in sorted(changes, reverse=True):
        page = page[:start] + write_like(page[start:end], value) + page[end:]
    return page
