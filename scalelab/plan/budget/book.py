"""The record of a law to plan by: its parameters, their spread and their source."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab.laws.law.forms import FLOPS_PER_PARAM_TOKEN
from scalelab.laws.law.law import Law
from scalelab.laws.trust.discrepancy import Discrepancy
from scalelab.laws.use import decision

EXTRAPOLATED = 10.0  # times the dearest run behind a law, beyond which a note says that it is extrapolated


@dataclasses.dataclass(frozen=True)
class PowerLawSplit:
    """N_opt = size x (C / flops)^exponent; `exponents`: the value and, if published, the ends of its interval."""

    size: float
    flops: float
    exponents: tuple[float, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class LawBook:
    """A law to plan by. `params`: one array [R] each; `level`: of the intervals, None if there are none. `misfit`: what
    a fitted law may get wrong, a draw for each row but the first.

    `surface` gives the loss in nats per token. `split`, if set, gives N instead of the surface's minimum. `held`: other
    columns of the surface (unique tokens). `largest_flops`: cost of the dearest run behind the law, if known.
    """

    name: str
    source: str
    n_convention: str
    interval: str
    surface: Law
    params: dict[str, np.ndarray]
    level: float | None = None
    split: PowerLawSplit | None = None
    k: float = FLOPS_PER_PARAM_TOKEN
    held: Mapping[str, float] = dataclasses.field(default_factory=dict)
    largest_flops: float | None = None
    notes: tuple[str, ...] = ()
    misfit: Discrepancy | None = None

    @property
    def rows(self) -> int:
        """Number of rows R: the law and its draws."""
        return max(len(values) for values in self.params.values())

    def first(self, rows: int) -> "LawBook":
        """This law with its first `rows` rows."""
        misfit = self.misfit.select(np.arange(min(rows, self.rows) - 1)) if self.misfit else None
        params = {name: values[:rows] for name, values in self.params.items()}
        return dataclasses.replace(self, params=params, misfit=misfit)

    def beyond(self, flops: float) -> tuple[str, ...]:
        """A note if a budget is far beyond the runs behind the law, else ()."""
        if self.largest_flops is None or flops <= EXTRAPOLATED * self.largest_flops:
            return ()
        times = flops / self.largest_flops
        ratio = f"{times:,.0f}" if times < 1e9 else f"{times:.3g}"
        dearest = f"the dearest run behind this law ({self.largest_flops:.2g})"
        return (f"extrapolated: {flops:.3g} FLOPs are {ratio} times {dearest}",)

    def best_size(self, C: np.ndarray) -> np.ndarray:
        """The best N [R] for C [R] FLOPs."""
        if self.split:
            return self.split.size * (C / self.split.flops) ** np.array(self.split.exponents)
        with np.errstate(invalid="ignore"):  # infinite in rows whose law has no answer for any budget
            sizes = decision.optimal_size(self.surface, self.params, C, self.k, self.held)
            if self.misfit is None:
                return sizes
            law, draws = self.surface, {name: values[1:] for name, values in self.params.items()}
            if np.all(C[0] == C):
                moved = decision.sizes_with_misfit(law, draws, self.misfit, float(C[0]), self.k, self.held)
            else:
                moved = decision.each_size_with_misfit(law, draws, self.misfit, C[1:], self.k, self.held)
            return np.append(sizes[0], moved)

    def wasted_share(self, params: float, N: np.ndarray, C: float) -> np.ndarray:
        """The share [R] of C that a model of `params` parameters wastes, where N [R] are the best (`best_size`)."""
        if self.misfit is None:
            return decision.wasted_share(self.surface, self.params, params, N, C, self.k, self.held)
        first, draws = (
            {name: values[rows] for name, values in self.params.items()} for rows in (slice(1), slice(1, None))
        )
        return np.append(
            decision.wasted_share(self.surface, first, params, N[:1], C, self.k, self.held),
            decision.waste_with_misfit(self.surface, draws, self.misfit, params, N[1:], C, self.k, self.held),
        )

    def loss(self, N: Any, D: Any) -> np.ndarray:
        """Loss [R] of N parameters after D tokens, each one or [R]."""
        N, D = np.broadcast_arrays(np.asarray(N, float), np.asarray(D, float))
        with np.errstate(all="ignore"):  # a law without a finite value keeps nan or inf
            columns = {**self.held, "N": N, "D": D, "C": self.k * N * D, "M": D / N}
        values = np.broadcast_to(self.surface(columns, self.params), (self.rows,))
        if self.misfit is None:
            return values
        rows = {name: np.broadcast_to(column, (self.rows,))[1:] for name, column in columns.items()}
        with np.errstate(all="ignore"):
            return np.append(values[0], self.misfit.correct(values[1:], self.misfit.along(rows)))


def constant_params(params: Mapping[str, float], rows: int = 1) -> dict[str, np.ndarray]:
    """{parameter: array [rows]} with equal rows."""
    return {name: np.full(rows, float(value)) for name, value in params.items()}


def stack_draws(point: Mapping[str, float], draws: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """{parameter: array} with the law's value first, then its draws."""
    return {name: np.append(float(value), np.asarray(draws[name], float)) for name, value in point.items()}
