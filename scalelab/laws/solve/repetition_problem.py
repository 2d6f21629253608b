"""Muennighoff's law of repeated data with derivatives by hand: its fits take seconds, and nothing is compiled.

L = E + A/N'^alpha + B/D'^beta. Both N' and D' are a column z less what repetition wastes: log z' = log z + h(v, log R)
with v = log(z / fresh) and h = -v + log(1 + R (1 - exp(-(e^v - 1) / R))). Of D the fresh part is min(U, D); of N it is
the best size for it, exp(q), where q is linear in g = log G: q = (beta / alpha) (log fresh + g) + g.
Legend: R problems, P points, G seeds; S, T different pairs of N or D and fresh tokens; a, b: logs of A and B; m, n:
logs of R_D_star and R_N_star.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from scalelab.laws.solve.log_problem import Linearised, LogProblem
from scalelab.laws.solve.problem import Columns, weighted_gram

NAMES = ("a", "b", "alpha", "beta", "n")  # of which A's term depends
PLACES = [1, 2, 3, 4, 6]  # theirs in x: E, a, b, alpha, beta, m, n
ALPHA, BETA, N = 2, 3, 4  # places in NAMES
OF_DATA = [2, 4, 5]  # places in x of b, beta and m, of which B's term depends


class Waste(NamedTuple):
    """h with its first and second derivatives by v and by the log of R."""

    h: np.ndarray
    v: np.ndarray
    r: np.ndarray
    vv: np.ndarray
    vr: np.ndarray
    rr: np.ndarray


class SizeTerm(NamedTuple):
    """A's term [R, S]; first derivatives by NAMES [R, 5, S] of its log, of log N' and of v; `waste` of v."""

    term: np.ndarray
    by: np.ndarray
    log_size: np.ndarray
    waste: Waste
    v: np.ndarray


class DataTerm(NamedTuple):
    """B's term [R, T], log D' and its waste."""

    term: np.ndarray
    log_data: np.ndarray
    waste: Waste


class Parts(NamedTuple):
    """What `law_bend` reads."""

    size: SizeTerm
    data: DataTerm


class Different(NamedTuple):
    """Different pairs of a column and of fresh tokens, of which a term depends: logs of both [S], each point's pair
    [P]; `order` [P] of the points by pair, `firsts` [S]: where each pair begins in it.
    """

    log: np.ndarray
    fresh: np.ndarray
    pair: np.ndarray
    order: np.ndarray
    firsts: np.ndarray

    def sum_points(self, values: np.ndarray) -> np.ndarray:
        """Sums [R, S] of values [R, P] over the points of each pair."""
        return np.add.reduceat(values[:, self.order], self.firsts, axis=1)


def find_different(log: np.ndarray, fresh: np.ndarray) -> Different:
    """The different pairs of two columns [P]; tables of repeated data have each many times."""
    (logs, freshes), pair, counts = np.unique(np.stack([log, fresh]), axis=1, return_inverse=True, return_counts=True)
    pair = pair.reshape(-1)
    return Different(logs, freshes, pair, np.argsort(pair, kind="stable"), np.cumsum(counts) - counts)


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
    def logs(self) -> tuple[Different, Different]:
        """Logs of N and of D, each beside that of the fresh tokens."""
        N, D, U = (np.asarray(self.columns[name], float) for name in ("N", "D", "U"))
        fresh = np.log(np.minimum(U, D))
        return find_different(np.log(N), fresh), find_different(np.log(D), fresh)

    def losses(self, x: np.ndarray) -> np.ndarray:
        """The law [R, P]."""
        sizes, tokens = self.logs
        E, a, b, alpha, beta, m, n = (x[:, i : i + 1] for i in range(7))
        g, ratio = _log_g(x)[0], beta / alpha
        with np.errstate(all="ignore"):
            v = np.maximum(sizes.log - (ratio * (sizes.fresh + g) + g), 0.0)
            size, data = sizes.log + _lost(v, n), tokens.log + _lost(tokens.log - tokens.fresh, m)
            return E + np.exp(a - alpha * size)[:, sizes.pair] + np.exp(b - beta * data)[:, tokens.pair]

    def linearise(self, x: np.ndarray) -> Linearised:
        """The law with its first derivatives, and its terms."""
        sizes, tokens = self.logs
        size, data = parts = self._parts(x)
        of_size, of_data = size.term[:, None] * size.by, data.term[:, None] * _data_slopes(x, data)
        slopes = np.ones((len(x), 7, self.points))
        for i, place in enumerate(PLACES):
            slopes[:, place] = of_size[:, i].take(sizes.pair, axis=1, mode="clip")
        slopes[:, 2] += of_data[:, 0].take(tokens.pair, axis=1, mode="clip")
        slopes[:, 4] += of_data[:, 1].take(tokens.pair, axis=1, mode="clip")
        slopes[:, 5] = of_data[:, 2].take(tokens.pair, axis=1, mode="clip")
        return Linearised(x[:, :1] + size.term[:, sizes.pair] + data.term[:, tokens.pair], slopes, parts)

    def law_bend(self, x: np.ndarray, share: np.ndarray, parts: Parts) -> np.ndarray:
        """Second derivatives of the law, summed over points."""
        (sizes, tokens), bend = self.logs, np.zeros((len(x), 7, 7))
        bend[:, np.array(PLACES)[:, None], PLACES] = self._size_bend(x, sizes.sum_points(share), parts.size)
        data = parts.data
        weight = tokens.sum_points(share) * data.term
        of_data = weighted_gram(_data_slopes(x, data), weight)  # of exp(b - beta log D')
        of_m = (weight * data.waste.r).sum(axis=1)
        of_data[:, 1, 2] -= of_m
        of_data[:, 2, 1] -= of_m
        of_data[:, 2, 2] -= x[:, 4] * (weight * data.waste.rr).sum(axis=1)
        bend[:, np.array(OF_DATA)[:, None], OF_DATA] += of_data
        return bend

    def _size_bend(self, x: np.ndarray, share: np.ndarray, size: SizeTerm) -> np.ndarray:
        """Second derivatives by NAMES [R, 5, 5] of A's term: exp(a - alpha log N'), summed with weights [R, S]."""
        weight, waste, alpha = share * size.term, size.waste, x[:, 3]
        by_q = weight * waste.v * (size.v[:, 0] != 0.0)
        of_size = weighted_gram(size.v, weight * waste.vv)
        of_size -= self._best_size_bend(x, by_q)
        of_n = (size.v @ (weight * waste.vr)[..., None])[..., 0]
        of_n[:, N] = 0.5 * (weight * waste.rr).sum(axis=1)
        of_size[:, N] += of_n
        of_size[:, :, N] += of_n
        bend = weighted_gram(size.by, weight) - alpha[:, None, None] * of_size
        of_alpha = (size.log_size @ weight[..., None])[..., 0]
        bend[:, ALPHA] -= of_alpha
        bend[:, :, ALPHA] -= of_alpha
        return bend

    def _parts(self, x: np.ndarray) -> Parts:
        sizes, tokens = self.logs
        a, b, alpha, beta, m, n = (x[:, i : i + 1] for i in range(1, 7))
        q, by_q = self._best_size(x)
        v = np.maximum(sizes.log - q, 0.0)
        by_v = np.where((v > 0.0)[:, None], -by_q, 0.0)
        waste = waste_of(v, n)
        log_size = sizes.log + waste.h
        of_size = waste.v[:, None] * by_v
        of_size[:, N] = waste.r
        by = -alpha[:, None] * of_size
        by[:, 0] += 1.0
        by[:, ALPHA] -= log_size
        size = SizeTerm(np.exp(a - alpha * log_size), by, of_size, waste, by_v)
        repeated = waste_of(np.broadcast_to(tokens.log - tokens.fresh, (len(x), len(tokens.log))), m)
        log_data = tokens.log + repeated.h
        return Parts(size, DataTerm(np.exp(b - beta * log_data), log_data, repeated))

    def _best_size(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log of the best size q [R, S] and its derivatives by NAMES [R, 5, S]."""
        alpha, beta = x[:, 3:4], x[:, 4:5]
        g, by_g = _log_g(x)
        ratio, reach = beta / alpha, self.logs[0].fresh + g
        by = np.zeros((len(x), len(NAMES), reach.shape[1]))
        for place, name in enumerate(NAMES[:N]):
            by[:, place] = (ratio + 1.0) * by_g[name]
        by[:, ALPHA] -= ratio / alpha * reach
        by[:, BETA] += reach / alpha
        return ratio * reach + g, by

    def _best_size_bend(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Second derivatives of q by NAMES [R, 5, 5], summed with weights [R, S]."""
        alpha, beta = x[:, 3], x[:, 4]
        log_g, log_by = _log_g(x)
        by = {name: each[:, 0] for name, each in log_by.items()}
        count, reach = weight.sum(axis=1), (weight * (self.logs[0].fresh + log_g)).sum(axis=1)
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
        bends = np.zeros((len(x), len(NAMES), len(NAMES)))
        for (name, other), each in second.items():
            bend = (ratio + 1.0) * each
            bend = bend + (of_ratio[name] * by[other] if name in of_ratio else 0.0)
            bend = bend + (of_ratio[other] * by[name] if other in of_ratio else 0.0)
            i, j = NAMES.index(name), NAMES.index(other)
            bends[:, i, j] = bends[:, j, i] = count * bend + of_ratios.get((name, other), 0.0) * reach
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


def _data_slopes(x: np.ndarray, data: DataTerm) -> np.ndarray:
    """First derivatives of b - beta log D' by b, beta and m: [R, 3, T]."""
    return np.stack([np.ones_like(data.term), -data.log_data, -x[:, 4:5] * data.waste.r], axis=1)
