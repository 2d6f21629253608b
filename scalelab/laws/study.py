"""From a table of runs to a fit: which runs count, the law, its intervals, and the JSON block that others read.

The one door for the studies, the report and `scalelab fit`: the same rows give the same numbers, bit for bit, in
whatever order they come.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput, nearest
from scalelab.laws.fit import Fit, fit_chinchilla
from scalelab.laws.forms import FLOPS_PER_PARAM_TOKEN, chinchilla
from scalelab.laws.uncertainty import Bootstrap, Decision, Prediction, bootstrap, decide, intervals, predict

Row = Mapping[str, Any]
N_COLUMNS = {"total": "N", "non_embedding": "N_non_embedding", "kaplan": "N_kaplan", "chinchilla": "N_chinchilla"}
LEVEL = 0.9
CLOSE_BASIN = 0.01  # another optimum within 1 % of the objective: the data hardly choose between the two
FEW = 0.05  # more failed resamples than this share: the intervals are those of the luckier ones
INTERVAL_METHOD = "percentiles of refits to resampled runs; for one new run, times the residuals of left-out runs"


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """A fit to a table of runs. `kept` rows were fitted; `excluded` holds {"name", "reason"} of every other.

    `k` is that of C = k N D: the median of the fitted runs' own C / (N D), or 6 where they don't know their C.
    """

    fit: Fit
    bootstrap: Bootstrap
    n_convention: str
    k: float
    kept: tuple[Row, ...]
    excluded: tuple[dict[str, str], ...]

    def loss(self, N: float, D: float) -> float:
        """Loss of the fitted law, in nats per token."""
        return float(chinchilla(self.fit.params, N, D))

    def predict(self, N: float, D: float, level: float = LEVEL) -> Prediction:
        """The loss of one new run with its interval. N by the study's own convention."""
        return predict(self.fit, self.bootstrap, N, D, level)

    def decide(self, C: float, level: float = LEVEL) -> Decision:
        """How to spend C FLOPs, counted as the fitted runs count theirs. N by the study's own convention."""
        return decide(self.fit, self.bootstrap, C, self.k, level)

    def warnings(self) -> list[str]:
        """What a reader must know before using the numbers; [] where there is nothing."""
        certificate, boot = self.fit.certificate, self.bootstrap
        said = [f"{name} is at its bound: the data do not determine it" for name in certificate.at_bounds]
        if certificate.next_basin is not None and certificate.next_basin < CLOSE_BASIN:
            said.append(
                f"another optimum is only {certificate.next_basin:.2%} worse: the data hardly choose between them"
            )
        if boot.used < (1 - FEW) * boot.requested:
            said.append(f"only {boot.used} of {boot.requested} resamples gave a fit: the intervals are too narrow")
        for name, held in boot.at_bounds.items():
            if held > FEW * boot.used:
                said.append(f"{name} is at its bound in {held} of {boot.used} resamples: it is poorly identified")
        return said

    def to_json(self) -> dict[str, Any]:
        """The `fit` block of a study's summary.json."""
        return self.fit.to_json() | {
            "n_convention": self.n_convention,
            "n_runs": len(self.kept),
            "flops_per_param_token": self.k,
            "interval_level": LEVEL,
            "intervals": {name: list(pair) for name, pair in intervals(self.bootstrap, LEVEL).items()},
            "interval_method": INTERVAL_METHOD,
            "bootstrap": self.bootstrap.to_json(),
            "excluded": list(self.excluded),
            "warnings": self.warnings(),
        }


def fit_study(
    rows: Sequence[Row], n_convention: str = "total", drop_top_loss: int = 0, delta: float = 1e-3, count: int = 1000,
    seed: int = 0,
) -> Study:  # fmt: skip
    """Fit Chinchilla's law to the finished runs of a table, with `count` bootstrap resamples.

    A row has `val_loss` (nats per token), `D` (tokens), N in the convention's column (`N_COLUMNS`) and, where known,
    `name`, `status` and `role`. Rows of role "fit" are fitted if there are any, else all of them; never those that are
    not done, have no finite loss, or are among the `drop_top_loss` worst. BadInput where too few are left.
    """
    if n_convention not in N_COLUMNS:
        raise BadInput(f"--n={n_convention}: unknown convention{nearest(n_convention, N_COLUMNS)}")
    kept, excluded = select(rows, N_COLUMNS[n_convention], drop_top_loss)
    if not kept:
        raise BadInput(f"none of {len(rows)} runs can be fitted: {_reasons(excluded)}")
    N, D, loss = (np.array([float(row[key]) for row in kept]) for key in (N_COLUMNS[n_convention], "D", "val_loss"))
    fit = fit_chinchilla(N, D, loss, delta)
    boot = bootstrap(N, D, loss, fit, count=count, seed=seed)
    C = np.array([float(row.get("C") or FLOPS_PER_PARAM_TOKEN * n * d) for row, n, d in zip(kept, N, D, strict=True)])
    return Study(fit, boot, n_convention, float(np.median(C / (N * D))), tuple(kept), tuple(excluded))


def select(rows: Sequence[Row], n_column: str, drop_top_loss: int = 0) -> tuple[list[Row], list[dict[str, str]]]:
    """(rows to fit, in an order that depends on their values only; {"name", "reason"} of the others)."""
    if drop_top_loss < 0:
        raise BadInput(f"drop_top_loss = {drop_top_loss}: a number of runs, 0 or more")
    only_fit = any(row.get("role") == "fit" for row in rows)
    kept, excluded = [], []
    for index, row in enumerate(rows):
        reason = _refusal(row, n_column, only_fit)
        if reason:
            excluded.append({"name": str(row.get("name", f"row {index + 1}")), "reason": reason})
        else:
            kept.append(row)
    kept.sort(key=lambda row: (row["val_loss"], row[n_column], row["D"]))
    least = len(kept) - min(drop_top_loss, len(kept))
    for row in kept[least:]:
        excluded.append({"name": str(row.get("name", "?")), "reason": f"one of the {drop_top_loss} largest losses"})
    return kept[:least], excluded


def _refusal(row: Row, n_column: str, only_fit: bool) -> str:
    """Why a row is not fitted; "" where it is."""
    if only_fit and row.get("role") != "fit":
        return f"role {row.get('role') or 'none'}"
    if row.get("status", "done") != "done":
        return str(row["status"])
    for key in ("val_loss", "D", n_column):
        value = row.get(key)
        if value is None:
            return f"no {key}"
        if not (math.isfinite(value) and value > 0):
            return f"{key} is {value:g}"
    return ""


def _reasons(excluded: Sequence[Mapping[str, str]]) -> str:
    counts: dict[str, int] = {}
    for entry in excluded:
        counts[entry["reason"]] = counts.get(entry["reason"], 0) + 1
    return ", ".join(f"{number} {reason}" for reason, number in counts.items()) or "there are none"
