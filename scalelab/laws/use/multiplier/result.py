"""The result: multipliers of every rung, their trend, the target, the verdict, and their JSON."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from scalelab.errors import BadInput

Interval = tuple[float, float]
CURRENCIES = ("flops", "tokens", "time")
LEVEL = 0.9  # of intervals
WORTH = 1.02  # a multiplier between 1 / WORTH and WORTH doesn't matter


def format_factor(m: float) -> str:
    """Write a multiplier in three decimals; beyond a factor of 1,000 either way its order of magnitude alone."""
    return f"{m:.3f}" if m == 0 or 1e-3 <= m < 1e3 else f"{m:.0e}"


def join_ends(ends: Sequence[float]) -> str:
    """Write an interval of multipliers: `0.886 to 0.939`."""
    return f"{format_factor(ends[0])} to {format_factor(ends[1])}"


@dataclasses.dataclass(frozen=True)
class RungMultiplier:
    """One rung: both sides' mean losses, and the multiplier in each currency with its interval (None: not known)."""

    C: float
    baseline: float | None
    variant: float | None
    m: dict[str, float | None]
    interval90: dict[str, Interval | None]
    n_seeds: tuple[int, int]
    paired_correlation: float | None
    diverged: tuple[int, int] = (0, 0)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        content = dataclasses.asdict(self)
        content["interval90"] = {key: ends and list(ends) for key, ends in self.interval90.items()}
        return content | {"n_seeds": list(self.n_seeds), "diverged": list(self.diverged)}


@dataclasses.dataclass(frozen=True)
class Multiplier:
    """What a variant is worth. log m = a + b log(C / centre); `trend.interval90` is b's, `p_b` that b = 0.

    `p_fit`: of the line's lack of fit; `discrepancy`: bend and jumps beside the line. `target`: `m` there, its
    interval, the one that holds for all variants together (`together90`), the one that adopts or rejects (`deciding`),
    P(m > 1), `beyond`, the target over the largest rung, and whether it is a `measured` rung, whose own m this is.
    `law`: the baseline's E, A, alpha and unit (FLOPs). `worth`, `family`: between 1 / worth and worth m doesn't matter;
    variants judged together. `blocks`: those within which runs were paired. `pinned`: m at the target at other values
    of an E that was given. `curve`: the curve with its band, for a figure.
    """

    variant: str
    rungs: tuple[RungMultiplier, ...]
    trend: dict[str, Any]
    target: dict[str, Any]
    verdict: str
    criterion: str
    notes: tuple[str, ...]
    law: dict[str, float]
    noise: dict[str, Any]
    pinned: tuple[dict[str, float], ...] = ()
    curve: tuple[dict[str, Any], ...] = ()
    worth: float = WORTH
    family: int = 1
    blocks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As plain JSON: `rungs`, `trend`, `target`, `verdict`, `criterion`, and what they rest on."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields |= {"rungs": [rung.to_json() for rung in self.rungs], "notes": list(self.notes)}
        return fields | {"pinned": list(self.pinned), "curve": list(self.curve)}


def check_worth(worth: float) -> None:
    """BadInput for a worth that is not a factor from 1 on."""
    if not (math.isfinite(worth) and worth >= 1):
        nearest = f"{1 / worth:g}" if 0 < worth < 1 else f"{WORTH:g}"
        raise BadInput(
            f"--worth={worth:g}: it is the smallest multiplier of compute that matters, 1 or more; nearest: "
            f"--worth={nearest}"
        )
