"""Expected intervals of a fit of planned runs, before any starts: linearised information of an assumed law."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from scipy import special

from scalelab.errors import BadInput
from scalelab.laws import next_runs
from scalelab.laws.design import design
from scalelab.laws.law.objective import HOFFMANN_DELTA, huber_log
from scalelab.laws.read.points import law_columns
from scalelab.laws.solve import optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.trust import information
from scalelab.laws.use import decision
from scalelab.plan.budget.book import LawBook

LEVEL = 0.9
LOGS = ("N", "loss")  # their sd is that of the logarithm


@dataclasses.dataclass(frozen=True)
class ExpectedInterval:
    """One number of the fit: its value if the assumed law is true, and its expected interval.

    `name`: a parameter; "N": the best size at the target; "loss": of one run there, noise included. `sd` of N, loss and
    scales is relative.
    """

    name: str
    value: float
    sd: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Forecast:
    """Expected intervals at `level` from `runs` runs whose log losses scatter by `noise` about `law`.

    `findings`: weaknesses of the runs' sizes and budgets, as `scalelab fit` will report them.
    """

    law: str
    source: str
    params: dict[str, float]
    noise: float
    level: float
    target_flops: float
    runs: int
    expected: tuple[ExpectedInterval, ...]
    findings: tuple[str, ...]


def forecast_intervals(book: LawBook, noise: float, runs: Mapping[str, np.ndarray], target_flops: float) -> Forecast:
    """Expected intervals for runs with columns N, D and C [P], fitted by `scalelab fit`'s default objective.

    Linearised at the law of `book` (Gauss-Newton, Student's t), and widened by the inefficiency of Huber's objective on
    normal noise (Huber 1964). BadInput where no law can be fitted to such runs, or the book's law has no surface of N
    and D.
    """
    if book.split:
        raise BadInput(f"law {book.name} is a power law of N: an expected fit needs a law of the loss, besiroglu say")
    if not 0 < noise < 1:
        raise BadInput(f"noise={noise:g}: the relative scatter of a run's loss, between 0 and 1; 0.005 is usual")
    law, point = book.surface, {name: float(values[0]) for name, values in book.params.items()}
    losses = law({**runs, "M": runs["D"] / runs["N"], **book.held}, point)
    columns, losses = law_columns({**runs, "loss": losses}, law)
    findings = design.row_findings(law, columns, losses, runs["C"])
    posed = pose_problem(law, columns, losses, huber_log())
    best = optimum.minimise_objective(posed, also=point)
    k = float(np.median(runs["C"] / (runs["N"] * runs["D"])))
    info = information.information_matrix(posed, best, noise * huber_inefficiency(HOFFMANN_DELTA / noise))
    spread = information.covariance_matrix(info)
    size = float(decision.optimal_size(law, point, target_flops, k, book.held)[0])
    loss = float(
        decision.losses_at_budget(
            law, {n: np.array(v) for n, v in point.items()}, np.array(size), target_flops, k, book.held
        )
    )
    width = float(special.stdtrit(max(len(losses) - len(point), 1), (1 + LEVEL) / 2))

    def expect(name: str, value: float) -> ExpectedInterval:
        target = target_flops if name in LOGS else None
        gradient = next_runs.target_gradient(posed, best, k, name, target, book.held)
        sd = float(np.sqrt(gradient @ spread @ gradient))
        if name == "loss":
            sd = float(np.hypot(sd, noise))
        low, high = interval_ends("log" if name in LOGS else law.params[name].how, value, width * sd)
        return ExpectedInterval(name, float(value), sd, low, high)

    values = point | {"N": size, "loss": loss}
    return Forecast(
        law=book.name,
        source=book.source,
        params=point,
        noise=noise,
        level=LEVEL,
        target_flops=target_flops,
        runs=len(losses),
        expected=tuple(expect(name, value) for name, value in values.items()),
        findings=tuple(finding.text for finding in findings),
    )


def interval_ends(how: str, value: float, reach: float) -> tuple[float, float]:
    """(low, high): `reach` to both sides of the value ("direct"), its logarithm ("log"), or a coefficient ("linear").

    A coefficient's interval is one of ratios too, since it can't be negative.
    """
    if how == "direct":
        return value - reach, value + reach
    ratio = math.exp(reach if how == "log" else reach / value)
    return value / ratio, value * ratio


def huber_inefficiency(c: float) -> float:
    """Standard deviation of Huber's estimate over that of least squares on normal noise, for a threshold of c sigma."""
    inside, density = 2 * special.ndtr(c) - 1, np.exp(-(c**2) / 2) / math.sqrt(2 * math.pi)
    return float(np.sqrt(inside - 2 * c * density + 2 * c**2 * special.ndtr(-c)) / inside)
