"""What a fit minimises: a sum over points of a penalty on residuals, of log loss or of loss itself.

Legend: R problems, P points.
"""

import dataclasses
from typing import Any

import numpy as np
from scipy.special import erf

from scalelab.errors import BadInput, nearest_hint

HOFFMANN_DELTA = 1e-3  # Hoffmann et al. 2022, sec. 3.3


@dataclasses.dataclass(frozen=True)
class Objective:
    """Sum of Huber(delta) of residuals r = log law - log data (of law - data where `log` is False).

    `overestimate` multiplies the penalty of points below the law: 10, say, fits the lower envelope of runs that were
    not all well tuned. An infinite `delta` is least squares: the sum of r^2 / 2.
    """

    name: str
    delta: float = HOFFMANN_DELTA
    overestimate: float = 1.0
    log: bool = True

    def side(self, r: Any) -> Any:
        """The multiplier of each residual's penalty."""
        return 1.0 if self.overestimate == 1.0 else np.where(r > 0, self.overestimate, 1.0)

    def penalty(self, r: np.ndarray) -> np.ndarray:
        """Huber's function: r^2/2 up to delta, then delta (|r| - delta/2) (Huber 1964); times the side's multiplier."""
        size = np.minimum(np.abs(r), self.delta)
        return self.side(r) * size * (np.abs(r) - 0.5 * size)

    def slope(self, r: np.ndarray) -> np.ndarray:
        """First derivative of `penalty`."""
        return self.side(r) * np.clip(r, -self.delta, self.delta)

    def bend(self, r: np.ndarray) -> np.ndarray:
        """Second derivative of `penalty` (zero beyond delta)."""
        return self.side(r) * (np.abs(r) <= self.delta)

    def weight(self, r: np.ndarray) -> np.ndarray:
        """slope / r: the weight of iteratively reweighted least squares, whose quadratic lies above the penalty."""
        return self.side(r) * np.minimum(1.0, self.delta / np.maximum(np.abs(r), np.minimum(self.delta, 1e300)))

    def log_normaliser(self, s: float = 1.0) -> float:
        """log of the integral of exp(-penalty(r) / s) over r: Gaussian inside delta, exponential tails outside."""
        delta, total = self.delta, 0.0
        for side in (1.0, self.overestimate):
            t = s / side
            inside = np.sqrt(np.pi * t / 2) * (erf(delta / np.sqrt(2 * t)) if np.isfinite(delta) else 1.0)
            total += inside + (t / delta * np.exp(-delta * delta / (2 * t)) if np.isfinite(delta) else 0.0)
        return float(np.log(total))

    def target(self, values: np.ndarray) -> np.ndarray:
        """Values whose differences are the residuals: logs, or the values themselves."""
        return np.log(values) if self.log else np.asarray(values, float)

    def to_json(self, value: float) -> dict[str, Any]:
        """As plain JSON values: name, delta (None: least squares), and `value`, the minimum."""
        delta = self.delta if np.isfinite(self.delta) else None
        return {"name": self.name, "delta": delta, "overestimate": self.overestimate, "value": value}


def huber_log(delta: float = HOFFMANN_DELTA) -> Objective:
    """Hoffmann's objective: a sum, never a mean, so that stopping rules see it (Besiroglu et al. 2024, sec. 3)."""
    return Objective("huber_log", delta)


OBJECTIVES = ("huber_log", "huber", "mse_log", "mse", "mle", "asymmetric")
OVERESTIMATE_WEIGHT = 10.0  # OLMo-core's advice for fitting a lower envelope (PR 554)


def load_objective(name: str, delta: float | None = None) -> Objective:
    """Load an objective by name; BadInput for an unknown name or an invalid threshold or weight.

    `NAME:X` multiplies the penalty of points below the law by X; `asymmetric` is `huber_log:10`. `mle` starts as
    `huber_log`: `likelihood.fit_scale` finds the scale from which its threshold follows.
    """
    plain, colon, weight = name.partition(":")
    if plain not in OBJECTIVES:
        raise BadInput(f"objective {name!r}: unknown{nearest_hint(plain, OBJECTIVES)}; one of {', '.join(OBJECTIVES)}")
    overestimate = _parse_weight(plain, weight) if colon else 1.0
    if plain == "asymmetric" and not colon:
        overestimate = OVERESTIMATE_WEIGHT
    if delta is not None and not delta > 0:
        raise BadInput(f"delta = {delta:g}: Huber's threshold must be positive (1e-3 is Hoffmann's)")
    if plain.startswith("mse"):
        if delta is not None:
            raise BadInput(f"delta = {delta:g}: {plain} is least squares and has no threshold; leave it out")
        return Objective(plain, np.inf, overestimate, log=plain == "mse_log")
    return Objective(plain, delta or HOFFMANN_DELTA, overestimate, log=plain != "huber")


def _parse_weight(plain: str, text: str) -> float:
    """The weight of `NAME:X`."""
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if plain == "mle" or not 0 < weight < float("inf"):
        why = "has no side" if plain == "mle" else "the weight of rows below the law is a positive number"
        raise BadInput(f"objective '{plain}:{text}': {why}; huber_log:10 fits a lower envelope")
    return weight
