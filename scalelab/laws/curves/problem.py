"""The fit of a law of curves as the solver sees it, with derivatives by hand: a term of many changes is summed once.

Coordinates are (E, a, alpha, coefficient of the annealing term, its shape), with a = A exp(-alpha mean log S1), the
logarithm of `memory`, and for C of `multi_power` the logarithm it has if LRs are divided by their mean.
Legend: R problems, K parameters, M shape parameters, P rows, G seeds.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.laws.law import curve_forms as forms
from scalelab.laws.solve.log_problem import Linearised, LogProblem
from scalelab.laws.solve.problem import Columns

SHAPE = 4  # place of the first shape parameter
Term = tuple[np.ndarray, np.ndarray, np.ndarray]
Kernel = Callable[[np.ndarray, bool], Term]  # (shape [M], with derivatives) -> (term [P], by shape [M, P], [M, M, P])


def annealing_kernel(columns: Columns) -> Kernel:
    """S2 and its derivatives by log memory."""
    drop, age = columns["drop"], columns["age"]

    def kernel(shape: np.ndarray, slopes: bool) -> Term:
        m = np.exp(shape[0])
        left = m * np.exp(age * np.log1p(-1.0 / m))
        term = m * drop.sum(axis=1) - (drop * left).sum(axis=1)
        if not slopes:
            return term, term[None], term[None, None]
        # left = m lambda^age; `rate` is the derivative of log lambda by log m, `bend` the second one.
        rate, bend = 1.0 / (m - 1.0), -m / (m - 1.0) ** 2
        grown = left * age * rate
        first = term - (drop * grown).sum(axis=1)
        second = term - (drop * (grown * (2.0 + age * rate) + left * age * bend)).sum(axis=1)
        return term, first[None], second[None, None]

    return kernel


def multi_power_kernel(columns: Columns) -> Kernel:
    """The sum over changes of `multi_power`, and its derivatives by (log C, beta, gamma); LRs over their mean."""
    drop, area, lr = (columns[name] for name in ("drop", "area", "lr"))
    log_area, log_lr = np.log(np.maximum(area, 1e-300)), np.log(lr) - mean_log_lr(columns)

    def kernel(shape: np.ndarray, slopes: bool) -> Term:
        c, beta, gamma = shape
        u = np.exp(c - gamma * log_lr + log_area)
        v = np.log1p(u)
        left = np.exp(-beta * v) * drop
        term = drop.sum(axis=1) - left.sum(axis=1)
        if not slopes:
            return term, term[None], term[None, None]
        share = u / (1.0 + u)
        by_c = beta * left * share
        by_cc = by_c * (1.0 - share - beta * share)
        by_cb = left * share * (1.0 - beta * v)
        first = [by_c, left * v, -log_lr * by_c]
        second = [[by_cc, by_cb, -log_lr * by_cc], [by_cb, -left * v * v, -log_lr * by_cb]]
        second.append([second[0][2], second[1][2], log_lr**2 * by_cc])
        return term, np.sum(first, axis=2), np.sum(second, axis=3)

    return kernel


def mean_log_lr(columns: Columns) -> float:
    """Mean logarithm of the LR after changes; 0 without changes."""
    changed = columns["drop"] != 0
    return float(np.mean(np.log(columns["lr"][changed]))) if changed.any() else 0.0


KERNELS = {forms.annealing: annealing_kernel, forms.multi_power: multi_power_kernel}


class CurveParts(NamedTuple):
    """A law of curves near x: the centred `power` [R, P], and the annealing term with derivatives if there is one."""

    power: np.ndarray
    term: Term | None


@dataclasses.dataclass(frozen=True, eq=False)
class CurveProblem(LogProblem):
    """The fit of a law of `curve_forms` to losses `target` [P]; residuals are of logs."""

    @functools.cached_property
    def centre(self) -> float:
        """Mean logarithm of S1, or of the step."""
        return np.log(self.columns[self.law.columns[0]]).mean()

    @functools.cached_property
    def size(self) -> np.ndarray:
        """Logarithm of S1, or of the step, less its mean [P]."""
        return np.log(self.columns[self.law.columns[0]]) - self.centre

    @functools.cached_property
    def kernel(self) -> Kernel | None:
        """The annealing term; None for the baseline, which has none."""
        return KERNELS[self.law.function](self.columns) if self.law.function in KERNELS else None

    @property
    def mixed(self) -> tuple[str, ...]:
        """A stands in x at the centre, and C of `multi_power` as if LRs were divided by their mean."""
        return ("A", "C")

    def losses(self, x: np.ndarray) -> np.ndarray:
        """The law [R, P]."""
        loss = x[:, 0:1] + x[:, 1:2] * self._power(x)
        return loss if self.kernel is None else loss - x[:, 3:4] * self._terms(x[:, SHAPE:])

    def linearise(self, x: np.ndarray) -> Linearised:
        """The law with its first derivatives, and its parts."""
        power = self._power(x)
        loss = x[:, 0:1] + x[:, 1:2] * power
        slopes, term = [np.ones_like(loss), power, -x[:, 1:2] * self.size * power], None
        if self.kernel is not None:
            each = [self.kernel(row[SHAPE:], True) for row in x]
            values, first, second = (np.stack(arrays) for arrays in zip(*each, strict=True))
            loss, term = loss - x[:, 3:4] * values, (values, first, second)
            slopes += [-values, *np.moveaxis(-x[:, 3:4, None] * first, 1, 0)]
        return Linearised(loss, np.stack(slopes, axis=1), CurveParts(power, term))

    def law_bend(self, x: np.ndarray, share: np.ndarray, parts: CurveParts) -> np.ndarray:
        """Second derivatives of the law [R, K, K], summed over points with weights `share` [R, P]."""
        bend = np.zeros((len(x), x.shape[1], x.shape[1]))
        pulled = share * parts.power * self.size
        bend[:, 1, 2] = bend[:, 2, 1] = -pulled.sum(axis=1)
        bend[:, 2, 2] = x[:, 1] * (pulled @ self.size)
        if parts.term:
            _, first, second = parts.term
            cross = -np.einsum("rmp,rp->rm", first, share)
            bend[:, 3, SHAPE:] = bend[:, SHAPE:, 3] = cross
            bend[:, SHAPE:, SHAPE:] = -x[:, 3, None, None] * np.einsum("rmnp,rp->rmn", second, share)
        return bend

    def basis(self, searched: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A constant, the centred power and the annealing term [G, L, P]; no offset."""
        ones = np.ones((len(searched), self.points))
        terms = [ones, np.exp(-searched[:, :1] * self.size)]
        if self.kernel is not None:
            terms.append(-self._terms(searched[:, 1:]))
        return np.stack(terms, axis=1), 0 * ones

    def to_params(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Parameters of coordinates x."""
        values = list(np.moveaxis(np.asarray(x, float), -1, 0))
        values[1] = values[1] * np.exp(values[2] * self.centre)
        for place in self._scales:
            values[place] = np.exp(values[place] + self._lr_shift(values))
        return dict(zip(self.law.params, values, strict=True))

    def from_params(self, params: Mapping[str, Any]) -> np.ndarray:
        """The inverse of `to_params`."""
        values = list(np.broadcast_arrays(*(np.asarray(params[name], float) for name in self.law.params)))
        values[1] = values[1] * np.exp(-values[2] * self.centre)
        for place in self._scales:
            values[place] = np.log(values[place]) - self._lr_shift(values)
        return np.stack(values, -1)

    @property
    def _scales(self) -> list[int]:
        """Places of the parameters that stand in x as logarithms."""
        return [place for place, kind in enumerate(self.law.params.values()) if kind.how == "log"]

    def _lr_shift(self, values: Sequence[np.ndarray]) -> np.ndarray | float:
        """gamma times the mean log LR, by which log C of `multi_power` changes if LRs are divided by their mean."""
        reference = mean_log_lr(self.columns) if self.law.function is forms.multi_power else 0.0
        return reference * values[-1] if reference else 0.0

    def _power(self, x: np.ndarray) -> np.ndarray:
        return np.exp(-x[:, 2:3] * self.size)

    def _terms(self, shapes: np.ndarray) -> np.ndarray:
        """The annealing term [R, P] for shape parameters [R, M]."""
        assert self.kernel is not None
        return np.stack([self.kernel(shape, False)[0] for shape in shapes])
