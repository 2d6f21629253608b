"""Muennighoff's law of repeated data with derivatives by hand: its fits take seconds, and nothing is compiled.

L = E + A/N'^alpha + B/D'^beta. Both N' and D' are a column z less what repetition wastes: log z' = log z + h(v, log R)
with v = log(z / fresh) and h = -v + log(1 + R (1 - exp(-(e^v - 1) / R))). Of D the fresh part is min(U, D); of N it is
the best size for it, exp(q), where q is linear in g = log G: q = (beta / alpha) (log fresh + g) + g.
Legend: R problems, P points, G seeds; a, b: logs of A and B; m, n: logs of R_D_star and R_N_star.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from scalelab.laws.solve.log_problem import Linearised, LogProblem
from scalelab.laws.solve.problem import Columns

NAMES = ("a", "b", "alpha", "beta", "n")  # of which A's term depends
PLACES = {"E": 0, "a": 1, "b": 2, "alpha": 3, "beta": 4, "m": 5, "n": 6}


class Waste(NamedTuple):
    """h with its first and second derivatives by v and by the log of R."""

    h: np.ndarray
    v: np.ndarray
    r: np.ndarray
    vv: np.ndarray
    vr: np.ndarray
    rr: np.ndarray


class SizeTerm(NamedTuple):
    """A's term [R, P]; first derivatives of its log, of log N' and of v {name: [R, P]}; `waste` of v."""

    term: np.ndarray
    by: dict[str, np.ndarray]
    log_size: dict[str, np.ndarray]
    waste: Waste
    v: dict[str, np.ndarray]


class Parts(NamedTuple):
    """What `law_bend` reads: both terms, log D' [R, P] and its waste."""

    size: SizeTerm
    data: np.ndarray
    log_data: np.ndarray
    waste: Waste


def waste_of(v: np.ndarray, log_r: np.ndarray) -> Waste:
    """h and its derivatives at v [R, P] and log R [R, 1]."""
    r, grown = np.exp(log_r), np.exp(v)
    u = (grown - 1.0) / r
    left = np.exp(-u)
    total = 1.0 - r * np.expm1(-u)
    by_v, by_r = left * grown / total, r * (-np.expm1(-u) - left * u) / total
    vv = by_v * (1.0 - grown / r) - by_v**2
    vr = left * u * grown / total - by_v * by_r
    rr = by_r - r * left * u**2 / total - by_r**2
    return Waste(np.log(total) - v, by_v - 1.0, by_r, vv, vr, rr)


def _lost(v: np.ndarray, log_r: np.ndarray) -> np.ndarray:
    """h alone."""
    r = np.exp(log_r)
    return np.log(1.0 - r * np.expm1(np.expm1(v) / -r)) - v


@dataclasses.dataclass(frozen=True, eq=False)
class RepetitionProblem(LogProblem):
    """The fit of the law of repeated data; arguments as in `pose.pose_problem`. x: E, a, b, alpha, beta, m, n."""

    direct: tuple[str, ...] = ()
    centre_at: Columns | None = None

    @functools.cached_property
    def logs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Logs of N, of D, and of the fresh tokens [P]."""
        N, D, U = (np.asarray(self.columns[name], float) for name in ("N", "D", "U"))
        return np.log(N), np.log(D), np.log(np.minimum(U, D))

    def losses(self, x: np.ndarray) -> np.ndarray:
        """The law [R, P]."""
        log_n, log_d, fresh = self.logs
        E, a, b, alpha, beta, m, n = (x[:, i : i + 1] for i in range(7))
        g, ratio = _log_g(x)[0], beta / alpha
        with np.errstate(all="ignore"):
            v = np.maximum(log_n - (ratio * (fresh + g) + g), 0.0)
            size, data = log_n + _lost(v, n), log_d + _lost(log_d - fresh, m)
            return E + np.exp(a - alpha * size) + np.exp(b - beta * data)

    def linearise(self, x: np.ndarray) -> Linearised:
        """The law with its first derivatives, and its terms."""
        parts, beta = self._parts(x), x[:, 4:5]
        slopes = np.zeros((len(x), 7, self.points))
        slopes[:, 0] = 1.0
        for name in NAMES:
            slopes[:, PLACES[name]] += parts.size.term * parts.size.by[name]
        slopes[:, 2] += parts.data
        slopes[:, 4] -= parts.data * parts.log_data
        slopes[:, 5] -= parts.data * beta * parts.waste.r
        return Linearised(x[:, :1] + parts.size.term + parts.data, slopes, parts)

    def law_bend(self, x: np.ndarray, share: np.ndarray, parts: Parts) -> np.ndarray:
        """Second derivatives of the law, summed over points."""
        bend = np.zeros((len(x), 7, 7))
        self._add_size_bend(bend, x, share, parts.size)
        beta, weight, waste = x[:, 4:5], share * parts.data, parts.waste
        by = {"b": np.ones_like(weight), "beta": -parts.log_data, "m": -beta * waste.r}
        second = {("beta", "m"): -waste.r, ("m", "m"): -beta * waste.rr}
        _add_bend(bend, weight, by, second)
        return bend

    def _add_size_bend(self, bend: np.ndarray, x: np.ndarray, share: np.ndarray, size: SizeTerm) -> None:
        """Add the second derivatives of A's term: exp(a - alpha log N')."""
        alpha, second = x[:, 3:4], {}
        q = self._best_size_bend(x)
        active = size.v["a"] != 0.0
        waste, v = size.waste, size.v
        for i, name in enumerate(NAMES):
            for other in NAMES[i:]:
                each = waste.vv * v[name] * v[other]
                if (name, other) in q:
                    each = each - waste.v * np.where(active, q[name, other], 0.0)
                if other == "n":
                    each = each + (waste.rr if name == "n" else waste.vr * v[name])
                by_alpha = (name == "alpha") * size.log_size[other] + (other == "alpha") * size.log_size[name]
                second[name, other] = -alpha * each - by_alpha
        _add_bend(bend, share * size.term, size.by, second)

    def _parts(self, x: np.ndarray) -> Parts:
        log_n, log_d, fresh = self.logs
        a, b, alpha, beta, m, n = (x[:, i : i + 1] for i in range(1, 7))
        q, by_q = self._best_size(x)
        v = np.maximum(log_n - q, 0.0)
        inside = v > 0.0
        by_v = {name: np.where(inside, -each, 0.0) for name, each in by_q.items()} | {"n": np.zeros_like(v)}
        waste = waste_of(v, n)
        log_size = log_n + waste.h
        of_size = {name: waste.v * each for name, each in by_v.items()}
        of_size["n"] = waste.r
        by = {name: -alpha * of_size[name] for name in NAMES}
        by["a"], by["alpha"] = by["a"] + 1.0, by["alpha"] - log_size
        size = SizeTerm(np.exp(a - alpha * log_size), by, of_size, waste, by_v)
        repeated = waste_of(np.broadcast_to(log_d - fresh, (len(x), self.points)), m)
        log_data = log_d + repeated.h
        return Parts(size, np.exp(b - beta * log_data), log_data, repeated)

    def _best_size(self, x: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Log of the best size q [R, P] and its derivatives."""
        alpha, beta, fresh = x[:, 3:4], x[:, 4:5], self.logs[2]
        g, by_g = _log_g(x)
        ratio = beta / alpha
        by = {name: (ratio + 1.0) * each + 0.0 * fresh for name, each in by_g.items()}
        by["alpha"] = by["alpha"] - ratio / alpha * (fresh + g)
        by["beta"] = by["beta"] + (fresh + g) / alpha
        return ratio * (fresh + g) + g, by

    def _best_size_bend(self, x: np.ndarray) -> dict[tuple[str, str], np.ndarray]:
        """Second derivatives of q [R, P]."""
        alpha, beta, fresh = x[:, 3:4], x[:, 4:5], self.logs[2]
        g, by = _log_g(x)
        total, ratio = alpha + beta, beta / alpha
        of_ratio = {"alpha": -ratio / alpha, "beta": 1.0 / alpha}
        second = {
            ("a", "alpha"): -1.0 / total**2, ("a", "beta"): -1.0 / total**2,
            ("b", "alpha"): 1.0 / total**2, ("b", "beta"): 1.0 / total**2,
            ("alpha", "alpha"): (-1.0 / alpha**2 - 2 * by["alpha"]) / total,
            ("alpha", "beta"): -(by["alpha"] + by["beta"]) / total,
            ("beta", "beta"): (1.0 / beta**2 - 2 * by["beta"]) / total,
        }  # fmt: skip
        of_ratios = {("alpha", "alpha"): 2 * ratio / alpha**2, ("alpha", "beta"): -1.0 / alpha**2}
        bends = {}
        for (name, other), each in second.items():
            bend = (ratio + 1.0) * each + of_ratios.get((name, other), 0.0) * (fresh + g)
            bend = bend + (of_ratio[name] * by[other] if name in of_ratio else 0.0)
            bends[name, other] = bend + (of_ratio[other] * by[name] if other in of_ratio else 0.0)
        return bends

    def basis(self, searched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A constant [G, 1, P], and both terms [G, P]."""
        x = np.column_stack([np.zeros(len(searched)), searched])
        return np.ones((len(x), 1, self.points)), self.losses(x)

    def to_params(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters of the coordinates."""
        places = zip(self.law.params.items(), np.moveaxis(x, -1, 0), strict=True)
        return {name: np.exp(at) if kind.how == "log" else at for (name, kind), at in places}

    def from_params(self, params: Mapping[str, Any]) -> np.ndarray:
        """The inverse of `to_params`."""
        values = [np.asarray(params[name], float) for name in self.law.params]
        kinds = self.law.params.values()
        each = [np.log(value) if kind.how == "log" else value for value, kind in zip(values, kinds, strict=True)]
        return np.stack(np.broadcast_arrays(*each), -1)


def _log_g(x: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """g = log(alpha A / (beta B)) / (alpha + beta) [R, 1] and its derivatives."""
    a, b, alpha, beta = (x[:, i : i + 1] for i in range(1, 5))
    total = alpha + beta
    g = (np.log(alpha) + a - np.log(beta) - b) / total
    return g, {
        "a": 1.0 / total,
        "b": -1.0 / total,
        "alpha": (1.0 / alpha - g) / total,
        "beta": -(1.0 / beta + g) / total,
    }


def _add_bend(
    bend: np.ndarray, weight: np.ndarray, by: Mapping[str, np.ndarray], second: Mapping[tuple[str, str], np.ndarray]
) -> None:
    """Add to `bend` [R, K, K] the second derivatives of exp(f), f of first derivatives `by` and second ones."""
    names = list(by)
    for i, name in enumerate(names):
        for other in names[i:]:
            each = by[name] * by[other] + second.get((name, other), 0.0)
            total = np.einsum("rp,rp->r", weight, each)
            first, last = PLACES[name], PLACES[other]
            bend[:, first, last] += total
            if first != last:
                bend[:, last, first] += total
