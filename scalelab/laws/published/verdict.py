"""Published numbers beside ours: the rows of `scalelab reproduce`, and their verdicts.

Published values are strings as printed: their digits say how exactly a number is known.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

Verdict = Literal[
    "match",
    "within_interval",
    "lower_objective",
    "published_not_global",
    "table_error",
    "mismatch",
    "wrong",
]
Interval = tuple[float, float]

SAME_OPTIMUM = 1e-4  # objectives closer than this share belong to one minimum, reached more or less exactly


@dataclasses.dataclass(frozen=True)
class ComparisonRow:
    """One published number beside ours; `interval` is the published one, if any (of a forecast: ours).

    `place` and `sentence`: of a row that judges a text, the subject under which it stands, and what it says.
    """

    name: str
    ours: float
    published: float
    interval: Interval | None
    verdict: Verdict
    recipe: str
    place: str = ""
    sentence: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, place and sentence where there are any."""
        values = dataclasses.asdict(self) | {"interval": list(self.interval) if self.interval else None}
        return {key: value for key, value in values.items() if value or key not in ("place", "sentence")}


@dataclasses.dataclass(frozen=True)
class PaperReport:
    """All rows of one paper, and its findings as text. `stated`: the numbers come from teaching texts, not a paper."""

    paper: str
    source: str
    rows: tuple[ComparisonRow, ...]
    findings: tuple[str, ...]
    stated: bool = False


def rounding_tolerance(printed: str) -> float:
    """Half a unit of the last digit printed: "1.92e19" -> 5e16."""
    mantissa, _, exponent = printed.lower().partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def rounding_spread(compute: Callable[[dict[str, float]], float], printed: Mapping[str, str]) -> float:
    """How far a number computed from printed ones may be off as each of these is rounded."""
    exact = {name: float(text) for name, text in printed.items()}
    ours = compute(exact)
    ends = [
        [compute(exact | {name: exact[name] + sign * rounding_tolerance(text)}) for sign in (-1, 1)]
        for name, text in printed.items()
    ]
    return float(sum(max(abs(end - ours) for end in both) for both in ends))


def judge_agreement(ours: float, published: float, tolerance: float, interval: Interval | None = None) -> Verdict:
    """Judge as match within the tolerance, within_interval inside the published interval, else mismatch."""
    if abs(ours - published) <= tolerance * (1 + 1e-9):
        return "match"
    return "within_interval" if interval and interval[0] <= ours <= interval[1] else "mismatch"


def judge_consistency(ours: float, published: float, tolerance: float, interval: Interval | None = None) -> Verdict:
    """Judge as match or table_error, where `ours` follows from other numbers printed by the paper itself."""
    return "match" if judge_agreement(ours, published, tolerance, interval) == "match" else "table_error"


def judge_minimum(ours: float, published: float, tolerance: float, interval: Interval | None = None) -> Verdict:
    """Judge two minima of one objective on equal data.

    match within rounding; lower_objective if ours is lower by less than a ten-thousandth (the published search stopped
    short of this minimum); published_not_global if it is lower by more; mismatch if it is higher.
    """
    if abs(ours - published) <= tolerance * (1 + 1e-9):
        return "match"
    if ours > published:
        return "mismatch"
    return "lower_objective" if published - ours < SAME_OPTIMUM * published else "published_not_global"


def judge_forecast(ours: float, published: float, tolerance: float, interval: Interval | None = None) -> Verdict:
    """Judge as match, within_interval where our own interval holds what was measured, else mismatch."""
    if abs(ours - published) <= tolerance * (1 + 1e-9):
        return "match"
    return "within_interval" if interval and interval[0] <= published <= interval[1] else "mismatch"


def judge_statement(ours: float, published: float, tolerance: float, interval: Interval | None = None) -> Verdict:
    """Judge what a text says of its data as match, within_interval where our interval holds it, or wrong."""
    agrees = judge_forecast(ours, published, tolerance, interval)
    return "wrong" if agrees == "mismatch" else agrees


def judge_least(ours: float, published: float, tolerance: float, interval: Interval | None = None) -> Verdict:
    """Judge "at least" by other numbers of the paper itself: match, or table_error where ours is less."""
    return "match" if ours >= published - tolerance else "table_error"


def judge_above(ours: float, published: float, tolerance: float, interval: Interval | None = None) -> Verdict:
    """Judge what a text says is larger than a number as match, or wrong."""
    return "match" if ours > published else "wrong"


def judge_below(ours: float, published: float, tolerance: float, interval: Interval | None = None) -> Verdict:
    """Judge what a text says is smaller than a number as match, or wrong."""
    return "match" if ours < published else "wrong"


def judge_near(ours: float, published: float, tolerance: float, interval: Interval | None = None) -> Verdict:
    """Judge a stated number as match within the tolerance, else wrong."""
    return "match" if abs(ours - published) <= tolerance * (1 + 1e-5) else "wrong"  # a schedule's numbers are float32


def judge_superseded(ours: float, published: float, tolerance: float, interval: Interval | None = None) -> Verdict:
    """Judge as match or published_not_global: parameters of an optimum that is not global by `judge_minimum`."""
    return "match" if judge_agreement(ours, published, tolerance, interval) == "match" else "published_not_global"


def make_comparison_row(
    name: str,
    ours: float,
    published: str,
    recipe: str,
    judge: Any = judge_agreement,
    tolerance: float | None = None,
    interval: Interval | None = None,
) -> ComparisonRow:
    """Make a row with its verdict; `tolerance` is by default the rounding of the printed value."""
    allowed = rounding_tolerance(published) if tolerance is None else tolerance
    value, ours = float(published), float(ours)
    return ComparisonRow(name, ours, value, interval, judge(ours, value, allowed, interval), recipe)


def cite_sentence(place: str, sentence: str, *rows: ComparisonRow) -> list[ComparisonRow]:
    """The rows, each with the sentence that it judges and its place."""
    return [dataclasses.replace(row, place=place, sentence=sentence) for row in rows]
