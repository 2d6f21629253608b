"""IsoFLOP profiles (Hoffmann et al. 2022, approach 2): the best size of each budget, and the power law through them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import Akima1DInterpolator

from scalelab.errors import BadInput, nearest
from scalelab.laws.fit import FitError, positive

MIN_SIZES = 3
SAME_BUDGET = 0.05  # runs whose C differ by less than this share of it belong to one budget: steps are whole numbers


@dataclasses.dataclass(frozen=True, eq=False)
class Profile:
    """One budget of C FLOPs: the N of least loss, that loss, and whether the minimum lies inside the `sizes` tried.

    `curve` is what the minimum was taken of, for a plot: N and loss, each [61].
    """

    C: float
    N: float
    loss: float
    interior: bool
    sizes: int
    curve: tuple[np.ndarray, np.ndarray]

    def to_json(self) -> dict[str, Any]:
        """The profile as plain JSON values; `edge` says that the minimum is not inside."""
        curve = [axis.tolist() for axis in self.curve]
        return {"budget": self.C, "N": self.N, "loss": self.loss, "edge": not self.interior, "sizes": self.sizes,
                "curve": curve}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class IsoFlop:
    """N_opt = coefficient x C^a through the interior optima of `profiles` (all budgets, in order of C)."""

    a: float
    coefficient: float
    method: str
    profiles: tuple[Profile, ...]

    @property
    def edges(self) -> tuple[Profile, ...]:
        """The budgets whose minimum is at the edge of the sizes tried: not used, and to be told to the user."""
        return tuple(profile for profile in self.profiles if not profile.interior)

    def n_opt(self, C: ArrayLike) -> np.ndarray:
        """The best N for C FLOPs."""
        return self.coefficient * np.asarray(C, float) ** self.a

    def to_json(self) -> dict[str, Any]:
        """The profiles and the power law as plain JSON values."""
        profiles = [profile.to_json() for profile in self.profiles]
        return {"a": self.a, "coefficient": self.coefficient, "method": self.method, "budgets": profiles}


def budgets_of(C: ArrayLike, tolerance: float = SAME_BUDGET) -> np.ndarray:
    """The budget of each run [P]: runs next to each other in C and less than `tolerance` apart share one (their mean)."""
    C = np.asarray(C, float)
    order = np.argsort(C)
    starts = np.append(True, np.diff(np.log(C[order])) > np.log1p(tolerance))
    label = np.empty(len(C), int)
    label[order] = np.cumsum(starts) - 1
    means = np.exp(np.bincount(label, np.log(C)) / np.bincount(label))
    return means[label]


def parabola(log_n: np.ndarray, log_loss: np.ndarray) -> tuple[Callable, np.ndarray]:
    """(least-squares parabola, its vertex [1], or [0] where it opens downwards): biased on wide or lopsided profiles."""
    centre = log_n.mean()
    fitted = np.polyfit(log_n - centre, log_loss, 2)
    vertex = centre - fitted[1:2] / (2 * fitted[0]) if fitted[0] > 0 else np.empty(0)
    return lambda at: np.polyval(fitted, at - centre), vertex


def akima(log_n: np.ndarray, log_loss: np.ndarray) -> tuple[Callable, np.ndarray]:
    """(Akima interpolant, its exact turning points): imposes no shape (Porian et al. 2024)."""
    curve = Akima1DInterpolator(log_n, log_loss)
    turns = curve.derivative().roots(extrapolate=False)
    return curve, turns[np.isfinite(turns)]


METHODS = {"akima": akima, "parabola": parabola}


def profile(C: float, N: np.ndarray, loss: np.ndarray, method: str = "akima") -> Profile:
    """The optimum of one budget from sizes N [S] and losses [S]; of runs with equal N, the mean log loss counts.

    The minimum is sought within the sizes tried, edges included: `interior` tells which it was.
    """
    log_n, which = np.unique(np.log(N), return_inverse=True)
    if len(log_n) < MIN_SIZES:
        raise BadInput(f"budget {C:.3g}: {len(log_n)} sizes; a minimum needs at least {MIN_SIZES}")
    log_loss = np.bincount(which, np.log(loss)) / np.bincount(which)
    curve, turns = METHODS[method](log_n, log_loss)
    low, high = log_n[[0, -1]]
    candidates = np.array([low, high, *turns[(turns > low) & (turns < high)]])
    best = int(curve(candidates).argmin())
    at = np.linspace(low, high, 61)
    return Profile(
        C=float(C),
        N=float(np.exp(candidates[best])),
        loss=float(np.exp(curve(candidates[best]))),
        interior=best > 1,
        sizes=len(log_n),
        curve=(np.exp(at), np.exp(curve(at))),
    )


def fit_isoflop(C: ArrayLike, N: ArrayLike, loss: ArrayLike, method: str = "akima") -> IsoFlop:
    """Best size per budget and N_opt ~ C^a, from runs of C FLOPs, N parameters and loss in nats per token, each [P].

    Runs of nearly equal C (5 %) make one budget. `akima` interpolates log loss over log N; `parabola` is Hoffmann's fit.
    A budget whose minimum is at its smallest or largest size says only where to look next: it is kept in `profiles` and
    left out of the power law (unweighted least squares in logs). FitError with fewer than two interior minima.
    """
    if method not in METHODS:
        raise BadInput(f"unknown method {method!r}{nearest(method, METHODS)}")
    C, N, loss = positive(C=C, N=N, loss=loss)
    budget = budgets_of(C)
    profiles = tuple(profile(c, N[budget == c], loss[budget == c], method) for c in np.unique(budget))
    used = [p for p in profiles if p.interior]
    if len(used) < 2:
        raise FitError(
            f"{len(used)} of {len(profiles)} budgets have a minimum inside their sizes: 2 are needed; add sizes"
        )
    a, constant = np.polyfit(np.log([p.C for p in used]), np.log([p.N for p in used]), 1)
    return IsoFlop(float(a), float(np.exp(constant)), method, profiles)
