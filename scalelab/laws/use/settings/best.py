"""From losses to settings: the best lr, batch, … of each group of runs, and the laws through these optima.

best = fit_best_settings({"N": N, "D": D, "lr": lr, "batch": batch, "loss": loss}, ["lr", "batch"], ["N", "D"])
best.laws["lr"].exponents, best.laws["lr"].predict({"N": 1e9, "D": 1e11})
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.read.points import check_positive, merge_near
from scalelab.laws.use.settings.law import SettingLaw, collinear_columns, fit_setting_law
from scalelab.laws.use.settings.optima import GroupOptimum, Noise, find_optima
from scalelab.laws.use.settings.surface import Rows

BATCH_NAMES = ("batch", "batch_tokens")  # their law is usually one of D alone
DECADE = 10.0  # an exponent known to no better than this factor is not identified
FAR = 100.0  # a factor c likewise


@dataclasses.dataclass(frozen=True, eq=False)
class SettingGroup:
    """One group: its `values` of the --per columns, its `rows` (indices in the table), and its optimum."""

    values: dict[str, float]
    rows: np.ndarray
    optimum: GroupOptimum


@dataclasses.dataclass(frozen=True, eq=False)
class BestSettings:
    """The best settings of every group, and {setting: law through them}.

    `refused`: {setting: why it has no law}. `over`: {setting: the columns that its law may use}. `merged`: the --per
    columns of which nearly equal values were taken as one.
    """

    best_of: tuple[str, ...]
    per: tuple[str, ...]
    groups: tuple[SettingGroup, ...]
    noise: Noise
    laws: dict[str, SettingLaw]
    refused: dict[str, str]
    over: dict[str, tuple[str, ...]]
    level: float
    merged: tuple[str, ...] = ()

    def with_status(self, *statuses: str) -> list[SettingGroup]:
        """The groups of these statuses."""
        return [group for group in self.groups if group.optimum.status in statuses]

    def interval(self, group: SettingGroup, setting: str) -> tuple[float, float] | None:
        """The interval of a group's best setting; None if its error is not known."""
        errors, k = group.optimum.standard_errors, self.best_of.index(setting)
        if errors is None or group.optimum.at is None or not group.optimum.df:
            return None
        half = special.stdtrit(group.optimum.df, (1 + self.level) / 2) * errors[k]
        return tuple(np.exp(group.optimum.at[k] + np.array([-half, half])).tolist())

    def cost_of_factor(self, group: SettingGroup, setting: str, factor: float = 2.0) -> float | None:
        """Share of the loss that is lost at `factor` times the best setting, the others at their best."""
        if group.optimum.surface is None or group.optimum.at is None:
            return None
        k = self.best_of.index(setting)
        return math.expm1(group.optimum.surface.hessian[k, k] * math.log(factor) ** 2 / 2)

    def predict(self, at: Mapping[str, float]) -> dict[str, tuple[float, float, float]]:
        """{setting: (best, low, high)} of a new group at these values of the --per columns."""
        return {name: law.predict(at) for name, law in self.laws.items()}


def fit_best_settings(
    table: Mapping[str, ArrayLike],
    best_of: Sequence[str],
    per: Sequence[str],
    over: Mapping[str, Sequence[str]] | None = None,
    level: float = 0.9,
) -> BestSettings:
    """Find the best `best_of` of each group of equal `per`, and fit a power law of `per` through them.

    `table`: these columns and `loss` (nats/token), each [P], and, where known, `seed`. Runs that differ only in their
    seed are one setting; a seed's shift of all losses of its group is taken out. `over`: {setting: columns of its law};
    by default all of `per`, for a batch D alone. BadInput for columns that can't be used.
    """
    check_names(best_of, per)
    if missing := [name for name in (*best_of, *per) if name not in table]:
        raise BadInput(f"the table has no {missing[0]}{nearest_hint(missing[0], list(table))}")
    over = choose_columns(best_of, per, over or {})
    names = [*best_of, *per, "loss"]
    columns = dict(zip(names, check_positive(**{name: table[name] for name in names}), strict=True))
    labels = {name: merge_near(columns[name]) for name in per}
    merged = tuple(name for name in per if len(np.unique(labels[name])) < len(np.unique(columns[name])))
    keys, which = np.unique(np.stack(list(labels.values()), axis=1), axis=0, return_inverse=True)
    members = [np.flatnonzero(which.ravel() == i) for i in range(len(keys))]
    seed = np.unique(np.asarray(table["seed"]).astype(str), return_inverse=True)[1] if "seed" in table else None
    x = np.log(np.stack([columns[name] for name in best_of], axis=1))
    y, seed = np.log(columns["loss"]), np.zeros(len(x), int) if seed is None else seed
    optima, noise = find_optima([Rows(x[rows], y[rows], seed[rows]) for rows in members], best_of)
    groups = tuple(
        SettingGroup(dict(zip(per, key.tolist(), strict=True)), rows, optimum)
        for key, rows, optimum in zip(keys, members, optima, strict=True)
    )
    laws: dict[str, SettingLaw] = {}
    refused: dict[str, str] = {}
    for k, name in enumerate(best_of):
        law = _fit_law(groups, k, name, over[name], level)
        if isinstance(law, str):
            refused[name] = law
        else:
            laws[name] = law
    return BestSettings(tuple(best_of), tuple(per), groups, noise, laws, refused, over, level, merged)


def choose_columns(
    best_of: Sequence[str], per: Sequence[str], over: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """{setting: columns of its law}: those of `over`, else D for a batch, else all of `per`. BadInput for others."""
    for name, columns in over.items():
        if name not in best_of:
            raise BadInput(f"--over={name}=…: --best-of does not have {name}{nearest_hint(name, best_of)}")
        for column in columns:
            if column not in per:
                hint = nearest_hint(column, per)
                raise BadInput(f"--over={name}={'+'.join(columns)}: --per does not have {column}{hint}")
    usual = {name: ("D",) if name in BATCH_NAMES and "D" in per else tuple(per) for name in best_of}
    return usual | {name: tuple(columns) for name, columns in over.items()}


def check_names(best_of: Sequence[str], per: Sequence[str]) -> None:
    """BadInput for no name at all, a name that comes twice, or the loss."""
    names = [*best_of, *per]
    if not best_of or not per:
        raise BadInput("--best-of names settings (lr,batch) and --per what they may depend on (N,D): give both")
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"--best-of={','.join(best_of)} --per={','.join(per)}: {name} is named twice")
        if name in ("loss", "val_loss"):
            raise BadInput(f"--best-of and --per name settings and sizes, not {name}: it is what they are judged by")


def _fit_law(
    groups: Sequence[SettingGroup], k: int, name: str, wanted: Sequence[str], level: float
) -> SettingLaw | str:
    """The law of one setting, or why there is none. Groups whose optimum lies beyond an end count as bounds."""
    used = [g for g in groups if g.optimum.status in ("used", "edge") and g.optimum.at is not None]
    side = np.array([g.optimum.ends[k] for g in used])
    exact = [g for g, end in zip(used, side, strict=True) if not end]
    columns = [column for column in wanted if len({g.values[column] for g in exact}) > 1]
    if len(exact) < len(columns) + 2 or not columns:
        needed = f"a law of {' and '.join(columns or wanted)} needs {len(columns or wanted) + 2}"
        still = [column for column in wanted if column not in columns]
        return f"{len(exact)} groups have a best {name} inside what was tried; {needed}" + (
            f"; {' and '.join(still)} does not vary among them" if exact and still else ""
        )
    values = {column: np.array([g.values[column] for g in used]) for column in columns}
    if bound := collinear_columns({column: each[side == 0] for column, each in values.items()}):
        return (
            f"{' and '.join(bound)} grow together in these groups, so neither has an exponent of its own: take one, "
            f"--over={name}={bound[0]}"
        )
    at = np.array([np.clip(g.optimum.at[k], *g.optimum.tried[k]) for g in used if g.optimum.at is not None])
    errors = [each[k] for g in used if (each := g.optimum.own_errors) is not None]
    common = [g.optimum.common[k] for g in used if g.optimum.common is not None]
    known = len(errors) == len(used)
    return fit_setting_law(
        name, values, at, np.array(errors) if known else None, level, side, np.array(common) if known else None
    )


def judge_exponent(low: float, high: float) -> str:
    """The verdict on an exponent with this interval, in the words of a fit."""
    if low <= 0 <= high:
        return "not identified: it may be zero, or of either sign"
    small, large = sorted(map(abs, (low, high)))
    return "identified" if large <= DECADE * small else "not identified: its sign is known, its size hardly"


def to_json(best: BestSettings, at: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Groups, noise, laws and, `at` the values of a new group, predictions, as plain JSON values."""
    return {
        "best_of": list(best.best_of),
        "per": list(best.per),
        "interval_level": best.level,
        "groups": [_group_json(best, group) for group in best.groups],
        "noise": {
            "sd": _finite(best.noise.sd), "window_octaves": [_finite(each) for each in best.noise.window],
            "form_p": [_finite(each) for each in best.noise.form_p], "seeds_explain_it": best.noise.seeds_only,
            "share": best.noise.share,
        },
        "laws": {name: _law_json(best, law) for name, law in best.laws.items()},
        "refused": best.refused,
        "over": {name: list(columns) for name, columns in best.over.items()},
        "merged": list(best.merged),
        "predictions": _predictions(best, at) if at else {},
    }  # fmt: skip


def _group_json(best: BestSettings, group: SettingGroup) -> dict[str, Any]:
    optimum = group.optimum
    facts = {"values": group.values, "status": optimum.status, "why": optimum.why, "runs": optimum.runs,
             "settings": optimum.settings, "seeds": optimum.seeds,
             "tried": dict(zip(best.best_of, np.exp(optimum.tried).tolist(), strict=True)),
             "end": dict(zip(best.best_of, optimum.ends.tolist(), strict=True))}  # fmt: skip
    if optimum.at is None or optimum.value is None or optimum.surface is None:
        return facts
    errors, intervals = optimum.standard_errors, {name: best.interval(group, name) for name in best.best_of}
    return facts | {
        "best": dict(zip(best.best_of, np.exp(optimum.at).tolist(), strict=True)),
        "log_standard_error": None if errors is None else dict(zip(best.best_of, errors.tolist(), strict=True)),
        "interval": {name: list(ends) if ends else None for name, ends in intervals.items()},
        "loss": math.exp(optimum.value),
        "cost_of_2x": {name: best.cost_of_factor(group, name) for name in best.best_of},
        "surface": "with cross term" if optimum.surface.cross else "separable",
    }


def _law_json(best: BestSettings, law: SettingLaw) -> dict[str, Any]:
    value, *ends = law.scale()
    intervals = {name: law.interval(name) for name in law.columns}
    centre = dict(zip(law.columns, np.exp(law.centre).tolist(), strict=True))
    values = {name: [group.values[name] for group in best.with_status("used", "edge")] for name in law.columns}
    return {
        "columns": list(law.columns), "c": value, "c_interval": ends, "exponents": law.exponents,
        "intervals": {name: list(each) for name, each in intervals.items()},
        "verdicts": {name: judge_exponent(*each) for name, each in intervals.items()},
        "scatter": law.scatter, "df": law.df,
        "groups": int((law.side == 0).sum()), "bounds": int((law.side != 0).sum()),
        "ranges": {name: [min(each), max(each)] for name, each in values.items()},
        "centre": centre, "at_centre": list(law.predict(centre, new=False)),
    }  # fmt: skip


def _predictions(best: BestSettings, at: Mapping[str, float]) -> dict[str, Any]:
    return {
        name: {"at": {column: at[column] for column in law.columns}, "best": value, "interval": [low, high]}
        for name, law in best.laws.items()
        for value, low, high in [law.predict(at)]
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
