"""Approach 1 of Hoffmann et al. 2022: which run is best at each compute, along whole training curves.

It needs several checkpoints per run, with a learning rate that is not decayed towards a later end (or evaluations after
a cooldown from each checkpoint). Legend: P checkpoints, F points of the frontier, R runs, B budgets.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.read.points import check_positive
from scalelab.laws.solve.optimum import FitError
from scalelab.laws.trust.uncertainty import central_interval

BUDGETS = 1500  # Hoffmann et al. 2022, sec. 3.1
METHODS = ("envelope", "hull")


@dataclasses.dataclass(frozen=True, eq=False)
class Frontier:
    """The points of lowest loss: C, N, D, loss and the run's label, each [F], in order of C."""

    C: np.ndarray
    N: np.ndarray
    D: np.ndarray
    loss: np.ndarray
    run: np.ndarray

    def inner(self, sizes: np.ndarray) -> "Frontier":
        """The frontier without points of the smallest or the largest size tried: their optimum may lie beyond."""
        keep = ~np.isin(self.N, [sizes.min(), sizes.max()])
        return Frontier(self.C[keep], self.N[keep], self.D[keep], self.loss[keep], self.run[keep])


@dataclasses.dataclass(frozen=True, eq=False)
class Envelope:
    """N_opt = N_coefficient x C^a and D_opt = D_coefficient x C^b through the inner `frontier`.

    `a_interval`, `b_interval` at `level` come from refits to runs drawn with replacement: they show how much depends on
    single runs. `edges` counts the points that were left out as they belong to the smallest or the largest size.
    """

    a: float
    b: float
    N_coefficient: float
    D_coefficient: float
    frontier: Frontier
    method: str
    edges: int
    a_interval: tuple[float, float] | None = None
    b_interval: tuple[float, float] | None = None
    level: float = 0.8

    def to_json(self) -> dict[str, Any]:
        """The power laws and the frontier as plain JSON values."""
        places = {field.name: getattr(self.frontier, field.name).tolist() for field in dataclasses.fields(Frontier)}
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {"frontier": places}


def lower_hull(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the lower convex hull of points (x, y) [P], in order of x (Andrew 1979)."""
    hull: list[int] = []
    for i in np.lexsort((y, x)):
        if hull and x[i] == x[hull[-1]]:
            continue
        while len(hull) > 1 and _turn(x, y, hull[-2], hull[-1], i) <= 0:
            hull.pop()
        hull.append(int(i))
    return np.array(hull, int)


def _turn(x: np.ndarray, y: np.ndarray, i: int, j: int, k: int) -> float:
    """Cross product of the steps from point i to j and to k: positive for a left turn."""
    return (x[j] - x[i]) * (y[k] - y[i]) - (y[j] - y[i]) * (x[k] - x[i])


def hull_frontier(run: np.ndarray, C: np.ndarray, N: np.ndarray, D: np.ndarray, loss: np.ndarray) -> Frontier:
    """Checkpoints on the lower convex hull of log loss over log C, up to the lowest loss (McLeish et al. 2025, sec. 4).

    Sparse checkpoints do no harm: nothing is interpolated, and L = E + k C^-g is convex in these coordinates.
    """
    at = lower_hull(np.log(C), np.log(loss))
    at = at[: int(loss[at].argmin()) + 1]
    return Frontier(C[at], N[at], D[at], loss[at], run[at])


def envelope_frontier(
    run: np.ndarray, C: np.ndarray, N: np.ndarray, D: np.ndarray, loss: np.ndarray, budgets: int = BUDGETS
) -> Frontier:
    """The run of least loss at each of `budgets` computes, evenly spaced in logs; curves are interpolated in log C.

    A run counts only between its own first and last checkpoint.
    """
    log_c = np.linspace(np.log(C.min()), np.log(C.max()), budgets)
    labels = np.unique(run)
    losses, tokens = (np.full((len(labels), budgets), np.inf) for _ in range(2))
    sizes = np.array([N[run == label][0] for label in labels])
    for i, label in enumerate(labels):
        rows = np.flatnonzero(run == label)
        rows = rows[np.argsort(C[rows])]
        inside = (log_c >= np.log(C[rows[0]])) & (log_c <= np.log(C[rows[-1]]))
        for table, values in ((losses, loss), (tokens, D)):
            table[i, inside] = np.interp(log_c[inside], np.log(C[rows]), np.log(values[rows]))
    best = losses.argmin(axis=0)
    seen = np.isfinite(losses.min(axis=0))
    columns = np.arange(budgets)
    used, lowest = (np.exp(table[best, columns][seen]) for table in (tokens, losses))
    return Frontier(np.exp(log_c)[seen], sizes[best][seen], used, lowest, labels[best][seen])


def fit_envelope(
    run: ArrayLike,
    C: ArrayLike,
    N: ArrayLike,
    D: ArrayLike,
    loss: ArrayLike,
    method: str = "hull",
    bootstrap: int = 200,
    level: float = 0.8,
    seed: int = 0,
) -> Envelope:
    """Fit N_opt ~ C^a and D_opt ~ C^b to checkpoints: the run's label, C FLOPs, N, D tokens, loss, each [P].

    `method`: "hull" (lower convex hull of all checkpoints) or "envelope" (Hoffmann's: the best of the interpolated
    curves at 1,500 computes). Least squares in logs. BadInput for an unknown method or unusable columns; FitError if
    fewer than two sizes, other than the smallest and the largest, are best at any compute.
    """
    if method not in METHODS:
        raise BadInput(f"method {method!r}: unknown{nearest_hint(method, METHODS)}")
    C, N, D, loss = check_positive(C=C, N=N, D=D, loss=loss)
    run = np.asarray(run)
    if run.shape != C.shape:
        raise BadInput(f"{run.size} run labels for {len(C)} checkpoints: one each is needed")
    whole, inner = _frontiers(run, C, N, D, loss, method)
    sizes = len(np.unique(inner.N))
    if sizes < 2:
        raise FitError(
            f"{sizes} of {len(np.unique(N))} sizes, other than the smallest and the largest, are best at any compute: "
            "2 are needed; add sizes, or checkpoints at lower and higher compute"
        )
    a, b, log_n, log_d = _power_laws(inner)
    spread = _resampled_exponents(run, (C, N, D, loss), method, bootstrap, seed)
    a_interval, b_interval = [central_interval(values, level) for values in spread.T] if len(spread) else (None, None)
    edges = len(whole.C) - len(inner.C)
    coefficients = float(np.exp(log_n)), float(np.exp(log_d))
    return Envelope(a, b, *coefficients, inner, method, edges, a_interval, b_interval, level)


def _frontiers(
    run: np.ndarray, C: np.ndarray, N: np.ndarray, D: np.ndarray, loss: np.ndarray, method: str
) -> tuple[Frontier, Frontier]:
    whole = (hull_frontier if method == "hull" else envelope_frontier)(run, C, N, D, loss)
    return whole, whole.inner(N)


def _power_laws(frontier: Frontier) -> tuple[float, float, float, float]:
    log_c = np.log(frontier.C)
    (a, log_n), (b, log_d) = (np.polyfit(log_c, np.log(values), 1) for values in (frontier.N, frontier.D))
    return float(a), float(b), log_n, log_d


def _resampled_exponents(
    run: np.ndarray, columns: Sequence[np.ndarray], method: str, count: int, seed: int
) -> np.ndarray:
    """(a, b) [<= count, 2] of runs drawn with replacement; draws with fewer than two inner sizes give none."""
    labels, which = np.unique(run, return_inverse=True)
    random = np.random.default_rng(seed)
    exponents = []
    for _ in range(count):
        drawn = np.zeros(len(labels), bool)
        drawn[random.integers(len(labels), size=len(labels))] = True
        keep = drawn[which]
        C, N, D, loss = (column[keep] for column in columns)
        _, inner = _frontiers(run[keep], C, N, D, loss, method)
        if len(np.unique(inner.N)) > 1:
            exponents.append(_power_laws(inner)[:2])
    return np.array(exponents)


def training_curves(runs: Iterable[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]]) -> dict[str, np.ndarray]:
    """Columns run, C, N, D, loss for `fit_envelope` from (row of `listing.read_run`, lines of `records.read_metrics`).

    Each evaluation is a checkpoint; its C is the run's own FLOPs per token times the tokens seen. BadInput without any.
    """
    rows = [
        (str(row["name"]), row["C"] / row["D"] * line["tokens"], row["N"], line["tokens"], line["val_loss"])
        for row, lines in runs
        for line in lines
        if row.get("C") and row.get("status", "done") == "done" and line.get("val_loss") and line["tokens"]
    ]
    if not rows:
        raise BadInput("no finished run with evaluations along its training: approach 1 needs several a run")
    names = ("run", "C", "N", "D", "loss")
    return {name: np.array([row[i] for row in rows]) for i, name in enumerate(names)}
