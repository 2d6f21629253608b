"""IsoFLOP profiles (Hoffmann et al. 2022, approach 2): the best size of each budget, and the power law through them."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.read.points import check_positive, group_near
from scalelab.laws.solve.optimum import FitError
from scalelab.laws.trust.uncertainty import central_interval
from scalelab.laws.use.isoflop_minima import METHODS
from scalelab.laws.use.seed_noise import MeasuredNoise, SeedNoise

MIN_SIZES = 3
SAME_BUDGET = 0.05  # runs whose C differ by less than this share belong to one budget: steps are whole numbers
FLOOR = 0.33  # least std of a minimum, as a share of the mean spacing of log N (Porian et al. 2024, app. D)
CURVE = 61  # points of each curve for a plot
Noise = SeedNoise | MeasuredNoise


@dataclasses.dataclass(frozen=True, eq=False)
class BudgetProfile:
    """One budget of C FLOPs: the N of least loss, that loss, and whether the minimum lies inside the sizes tried.

    `sizes` is their number; `curve` the fitted curve for a plot: N and loss, each [61]. With seed noise, N and loss are
    medians over noisy copies, `log_n` [<= R] their minima that lie inside, `log_n_std` the standard deviation of these.
    """

    C: float
    N: float
    loss: float
    interior: bool
    sizes: int
    curve: tuple[np.ndarray, np.ndarray]
    log_n_std: float | None = None
    log_n: np.ndarray | None = None

    def to_json(self) -> dict[str, Any]:
        """The profile as plain JSON values; `edge` is true if the minimum is not inside."""
        curve = [axis.tolist() for axis in self.curve]
        return {"budget": self.C, "N": self.N, "loss": self.loss, "edge": not self.interior, "sizes": self.sizes,
                "log_n_std": self.log_n_std, "curve": curve}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class IsoFlop:
    """N_opt = coefficient x C^a through the interior optima of `profiles` (all budgets, in order of C).

    `interval` of a at `level` is due to seed noise alone (None if no noise is assumed), that of `noise`.
    """

    a: float
    coefficient: float
    method: str
    profiles: tuple[BudgetProfile, ...]
    interval: tuple[float, float] | None = None
    level: float = 0.95
    noise: Noise | None = None

    @property
    def edges(self) -> tuple[BudgetProfile, ...]:
        """The budgets whose minimum is at the edge of the sizes tried: not used; callers report them to the user."""
        return tuple(profile for profile in self.profiles if not profile.interior)

    def n_opt(self, C: ArrayLike) -> np.ndarray:
        """The best N for C FLOPs."""
        return self.coefficient * np.asarray(C, float) ** self.a

    def to_json(self) -> dict[str, Any]:
        """The profiles and the power law as plain JSON values."""
        profiles = [profile.to_json() for profile in self.profiles]
        interval = list(self.interval) if self.interval else None
        noise = dataclasses.asdict(self.noise) if isinstance(self.noise, MeasuredNoise) else None
        return {"a": self.a, "coefficient": self.coefficient, "method": self.method, "interval": interval,
                "interval_level": self.level, "seed_noise": noise, "budgets": profiles}  # fmt: skip


def group_budgets(C: ArrayLike, tolerance: float = SAME_BUDGET) -> np.ndarray:
    """The budget [P] of each run: neighbours in C less than `tolerance` apart share one, their geometric mean."""
    return group_near(C, tolerance)


def profile_budget(
    C: float,
    N: np.ndarray,
    loss: np.ndarray,
    method: str = "akima",
    noise: Noise | None = None,
    resamples: int = 1000,
    seed: int | tuple[int, ...] = 0,
) -> BudgetProfile:
    """Find the optimum of one budget from sizes N [S] and losses [S]; runs of equal N count by their mean log loss.

    The minimum is searched within the sizes tried, edges included; `interior` is false at an edge. With `noise` it must
    also lie inside in half of the noisy copies, and the share that doesn't widens `log_n_std`. BadInput for fewer than
    three sizes.
    """
    log_n, which, repeats = np.unique(np.log(N), return_inverse=True, return_counts=True)
    if len(log_n) < MIN_SIZES:
        raise BadInput(f"budget {C:.3g}: {len(log_n)} sizes; a minimum needs at least {MIN_SIZES}")
    log_loss = np.bincount(which, np.log(loss)) / repeats
    minimum = METHODS[method](log_n, log_loss[:, None])
    at = np.linspace(log_n[0], log_n[-1], CURVE)
    plain = BudgetProfile(
        C=float(C),
        N=float(np.exp(minimum.at[0])),
        loss=float(np.exp(minimum.value[0])),
        interior=bool(minimum.interior[0]),
        sizes=len(log_n),
        curve=(np.exp(at), np.exp(minimum.curve(at)[:, 0])),
    )
    if noise is None:
        return plain
    mean = np.exp(log_loss)[:, None]
    spread = noise.std(mean) / np.sqrt(repeats)[:, None]
    noisy = mean + spread * np.random.default_rng(seed).standard_normal((len(mean), resamples))
    copies = METHODS[method](log_n, np.log(np.maximum(noisy, 1e-3 * mean)))
    stars, share = copies.at[copies.interior], float(copies.interior.mean())
    if not plain.interior or share < 0.5:
        return dataclasses.replace(plain, interior=False)
    return dataclasses.replace(
        plain,
        N=float(np.exp(np.median(stars))),
        loss=float(np.exp(np.median(copies.value[copies.interior]))),
        log_n_std=max(float(stars.std()), FLOOR * float(np.ptp(log_n)) / (len(log_n) - 1)) / share,
        log_n=stars,
    )


def fit_isoflop(
    C: ArrayLike,
    N: ArrayLike,
    loss: ArrayLike,
    method: str = "akima",
    noise: Noise | None = None,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> IsoFlop:
    """Fit best sizes per budget and N_opt ~ C^a to runs of C FLOPs, N parameters and loss (nats/token), each [P].

    Runs of nearly equal C (5 %) make one budget. `akima` interpolates log loss over log N; `parabola` is Hoffmann's
    fit. A budget whose minimum is at its smallest or largest size says only where to look next: it stays in `profiles`
    but not in the power law. That is a least-squares line in logs, with equal weights or, with `noise`, weights 1 /
    std^2 of each budget's log N over `resamples` noisy copies (Porian et al. 2024). BadInput for an unknown method or
    unusable columns, FitError with fewer than two interior minima.
    """
    if method not in METHODS:
        raise BadInput(f"unknown method {method!r}{nearest_hint(method, METHODS)}")
    C, N, loss = check_positive(C=C, N=N, loss=loss)
    budget = group_budgets(C)
    profiles = tuple(
        profile_budget(c, N[budget == c], loss[budget == c], method, noise, resamples, (seed, i))
        for i, c in enumerate(np.unique(budget))
    )
    used = [p for p in profiles if p.interior]
    if len(used) < 2:
        raise FitError(
            f"{len(used)} of {len(profiles)} budgets have a minimum inside their sizes: 2 are needed; add sizes"
        )
    weights = np.array([1.0 / (p.log_n_std or 1.0) for p in used])
    log_c = np.log([p.C for p in used])
    a, constant = np.polyfit(log_c, np.log([p.N for p in used]), 1, w=weights)
    interval = _noise_interval(log_c, [p.log_n for p in used], weights, level) if noise else None
    if interval and noise and np.isfinite(noise.dof):
        interval = _widen(interval, float(a), noise.dof, level)
    return IsoFlop(float(a), float(np.exp(constant)), method, profiles, interval, level, noise)


def _noise_interval(
    log_c: np.ndarray, stars: list[np.ndarray | None], weights: np.ndarray, level: float
) -> tuple[float, float]:
    """Percentiles of the exponent over noisy copies: the i-th minima of all budgets make one power law."""
    copies = [s for s in stars if s is not None]
    count = min(map(len, copies))
    slopes, _ = np.polyfit(log_c, np.stack([s[:count] for s in copies]), 1, w=weights)
    return central_interval(slopes, level)


def _widen(interval: tuple[float, float], a: float, dof: float, level: float) -> tuple[float, float]:
    """Widen the interval by Student's t, as the noise itself was estimated."""
    tail = (1 + level) / 2
    factor = float(special.stdtrit(dof, tail) / special.ndtri(tail))
    low, high = (a + factor * (end - a) for end in interval)
    return low, high
