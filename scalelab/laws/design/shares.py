"""What residuals tell of columns that no law uses: a text that splits the rows into two laws, runs that nobody named.

Both are F tests of the residuals, less what the law's parameters and a smooth misfit of its form explain. A column
counts if chance gives as much in one table of a hundred, all columns together. Legend: P points, B terms.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from scalelab.laws.law.law import logs_of
from scalelab.laws.read.finding import Finding
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.problem import Problem
from scalelab.laws.trust import information
from scalelab.laws.trust.information import sizes_and_tokens

LEVEL = 0.01  # of all columns of a table together
MOST_GROUPS = 20  # values of a text column that may be laws of their own
SPLITS = 0.5  # share of the residuals' variance from which a column is said to split the rows
FEWEST_SIZES = 8  # sizes of FEWEST_ROWS or more, from which an error that they share can be told from a misfit
FEWEST_ROWS = 3
FLAT = 1e-7
SAME = 0.01  # in logs: one size
SHOWN = 3


class Share(NamedTuple):
    """What groups explain of residuals: the share of their variance, and how often chance gives as much."""

    share: float
    p_value: float


def split_findings(posed: Problem, best: Optimum, table: Mapping[str, Sequence[Any]]) -> list[Finding]:
    """The finding about the text column of a table [P] that explains most of the residuals' variance; [] without one.

    Such rows follow laws of their own: two data sets, or two metrics, in one file.
    """
    texts = {name: values for name, values in table.items() if any(isinstance(value, str) for value in values)}
    columns = {name: [str(value) for value in values] for name, values in texts.items()}
    columns = {name: labels for name, labels in columns.items() if 2 <= len(set(labels)) <= MOST_GROUPS}
    columns = {name: labels for name, labels in columns.items() if not _names_sizes(posed, labels)}
    if not columns:
        return []
    residuals, base, logs = posed.residuals(best.params), smooth_base(posed, best), _standard_logs(posed)
    shares = {name: explain(residuals, base, labels, logs) for name, labels in columns.items()}
    sure = {name: share for name, share in shares.items() if share.p_value * len(shares) <= LEVEL}
    name = max(sure, key=lambda name: sure[name].share, default="")
    if name and sure[name].share >= SPLITS:
        return [Finding("two laws", _describe_split(name, sure[name].share, list(dict.fromkeys(columns[name]))))]
    together = ["; ".join(each) for each in zip(*(columns[name] for name in sure), strict=True)]
    if len(sure) < 2 or len(set(together)) > MOST_GROUPS:
        return []
    share = explain(residuals, base, together, logs)
    if share.share < SPLITS or share.p_value > LEVEL:
        return []
    text = (
        f"columns {', '.join(map(repr, sure))} together explain {share.share:.0%} of the residuals' variance: their "
        f"{len(set(together))} kinds of rows follow laws of their own, and this one is none of theirs: take one by "
        "--where"
    )
    return [Finding("two laws", text)]


def _names_sizes(posed: Problem, labels: Sequence[str]) -> bool:
    """Whether a column follows from one of the law's, as names of models do from N: it can't tell two laws apart."""
    groups = [np.flatnonzero([each == label for each in labels]) for label in set(labels)]
    return any(all(np.ptp(logs_of(column)[rows]) < SAME for rows in groups) for column in posed.columns.values())


def _describe_split(name: str, share: float, values: Sequence[str]) -> str:
    shown = ", ".join(values[:SHOWN]) + (f" and {len(values) - SHOWN} more" if len(values) > SHOWN else "")
    where = f", or one of them: --where=\"{name} == '{values[0]}'\"" if re.fullmatch(r"[A-Za-z_][\w.]*", name) else ""
    return (
        f"column {name!r} explains {share:.0%} of the residuals' variance: its rows ({shown}) follow laws of their "
        f"own, and this one is neither's: --by='{name}'{where}"
    )


def shared_error_findings(posed: Problem, best: Optimum) -> list[Finding]:
    """The finding about rows of equal N whose residuals agree, as those of checkpoints do; [] without one."""
    N, _ = sizes_and_tokens(posed.columns)
    if not len(N) or "N" not in posed.columns:
        return []
    number, counts = np.unique(np.round(np.log(N), 6), return_inverse=True, return_counts=True)[1:]
    rows = counts[number] >= FEWEST_ROWS
    if np.sum(counts >= FEWEST_ROWS) < FEWEST_SIZES:
        return []
    base = smooth_base(posed, best, degree=3)
    share = explain(posed.residuals(best.params)[rows], base[rows], number[rows])
    if share.p_value > LEVEL:
        return []
    text = (
        f"rows of equal N share an error ({share.share:.0%} of the residuals' variance, beyond a smooth misfit): if "
        "they are checkpoints of one run, intervals are too narrow; --cluster=COLUMN names the runs (--cluster=N: "
        "each size is one)"
    )
    return [Finding("shared error", text)]


def explain(
    residuals: np.ndarray, base: np.ndarray, labels: Sequence[Any] | np.ndarray, slopes: Sequence[np.ndarray] = ()
) -> Share:
    """What groups of equal labels explain of residuals [P] beyond `base` [P, B]: a partial F test.

    Each group has a mean of its own, and a slope in each of `slopes` [P].
    """
    base = _orthonormal(base)
    values, number = np.unique(np.asarray(labels), return_inverse=True)
    means = np.eye(len(values))[number]
    groups = np.column_stack([means, *(means * slope[:, None] for slope in slopes)])
    groups /= np.maximum(np.linalg.norm(groups, axis=0), FLAT)
    clean, shadow = residuals - base @ (base.T @ residuals), base.T @ groups
    scales, vectors = np.linalg.eigh(groups.T @ groups - shadow.T @ shadow)
    known = scales > FLAT
    total = float(clean @ clean)
    between = float(np.sum((vectors[:, known].T @ (groups.T @ clean)) ** 2 / scales[known]))
    extra, left = int(known.sum()), len(residuals) - base.shape[1] - int(known.sum())
    if extra < 1 or left < 1 or total <= 0:
        return Share(0.0, 1.0)
    within = max(total - between, 1e-12 * total)
    return Share(between / total, float(special.fdtrc(extra, left, (between / extra) / (within / left))))


def smooth_base(posed: Problem, best: Optimum, degree: int = 2) -> np.ndarray:
    """What the law's parameters can explain, and polynomials of this degree in the logs of its columns: [P, B]."""
    logs = _standard_logs(posed)
    powers = itertools.product(range(degree + 1), repeat=len(logs))
    terms = [
        np.prod([log**power for log, power in zip(logs, each, strict=True)], axis=0)
        for each in powers
        if 0 < sum(each) <= degree
    ]
    slopes = information.law_sensitivity(posed, best, posed.columns, 1.0)
    return np.column_stack([slopes, np.ones(posed.points), *terms])


def _standard_logs(posed: Problem) -> list[np.ndarray]:
    logs = [logs_of(column) for column in posed.columns.values()]
    return [(log - log.mean()) / log.std() for log in logs if log.std() > FLAT]


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    """An orthonormal base of the span of columns [P, n]."""
    sizes = np.linalg.norm(columns, axis=0)
    if not np.any(sizes > FLAT):
        return columns[:, :0]
    vectors, values, _ = np.linalg.svd(columns[:, sizes > FLAT] / sizes[sizes > FLAT], full_matrices=False)
    return vectors[:, values > FLAT * values[0]]
