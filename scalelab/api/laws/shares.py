"""Fit data mixing laws to runs on several mixtures, and find the best shares, as `scalelab fit --losses` does."""

import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.api.arguments import (
    NUMBER,
    STORED,
    TEXT,
    Facts,
    Kind,
    Path,
    check_arguments,
    either,
    list_paths,
    mapping_of,
    several,
    whole,
)
from scalelab.config.mixture_text import parse_mixture
from scalelab.errors import BadInput, nearest_hint
from scalelab.index.table import all_columns, read_grid
from scalelab.laws import fit as fit_law
from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.law.axis_forms import mixture_of
from scalelab.laws.law.names import FEWEST_DOMAINS, MOST_DOMAINS
from scalelab.laws.read.columns import fitting_columns
from scalelab.laws.read.readers import column_names
from scalelab.laws.read.table import read_table
from scalelab.laws.read.where import filter_rows
from scalelab.laws.use.mixture import BestShares, best_shares

BY_SOURCE = "val_loss/"  # of a run of ours: the validation loss of one source
LOSSES = either(
    Kind("a list of losses", lambda value: isinstance(value, list | tuple) and all(map(TEXT.fits, value))),
    mapping_of(NUMBER, "a dict of weights such as {'loss_web': 0.5, 'loss_code': 0.5}"),
)
LOSS_NAME = re.compile(r"(?:.*[_/. ])?(?:loss|nll)[_/. ]\S+", re.IGNORECASE)  # of one validation domain
MOST_GROUPS = 20


class MixtureTable(NamedTuple):
    """Mixtures that were tried: names of domains [K], `shares` [P, K], {name: losses [P]}, notes on the reading."""

    domains: list[str]
    shares: np.ndarray
    losses: dict[str, np.ndarray]
    notes: list[str]


class FittedMixture(NamedTuple):
    """The laws of each loss, by its name, their `weights`, and the best shares of `domains`; `tried` [P, K]."""

    domains: list[str]
    weights: dict[str, float]
    laws: dict[str, Fitted]
    best: BestShares
    tried: np.ndarray
    notes: list[str]
    level: float

    def to_json(self) -> Facts:
        """As plain JSON values."""
        best = self.best
        return {
            "domains": self.domains,
            "weights": self.weights,
            "laws": {name: {"params": law.params, "warnings": law.warnings()} for name, law in self.laws.items()},
            "shares": dict(zip(self.domains, map(float, best.shares), strict=True)),
            "intervals": {name: list(map(float, e)) for name, e in zip(self.domains, best.intervals, strict=True)},
            "level": self.level,
            "losses": dict(zip(self.weights, map(float, best.losses), strict=True)),
            "loss": best.loss,
            "loss_interval": list(best.loss_interval),
            "best_tried": dict(zip(self.domains, map(float, self.tried[best.tried]), strict=True)),
            "gain": best.gain,
            "gain_interval": list(best.gain_interval),
            "held": {self.domains[i]: share for i, share in best.held.items()},
            "gap": best.gap,
            "resamples": best.draws,
            "n_rows": len(self.tried),
            "notes": self.notes,
        }


def find_losses(sources: Sequence[Path]) -> list[str]:
    """The losses of several validation domains that tables or runs hold: those of each source, by name or number."""
    names = [name for source in sources for name in _names_of(source)]
    by_source = [name for name in dict.fromkeys(names) if name.startswith(BY_SOURCE)]
    return by_source or [n for n in dict.fromkeys(names) if LOSS_NAME.fullmatch(n) and "train" not in n.lower()]


def _names_of(source: Path) -> list[str]:
    return column_names(source) if os.path.isfile(source) else all_columns(read_grid(source)[0])


@check_arguments(sources=several(STORED), losses=LOSSES, bootstrap=whole(1))
def fit_mixture(
    sources: Path | Sequence[Path],
    losses: Sequence[str] | Mapping[str, float] = (),
    *,
    columns: Mapping[str, str] | None = None,
    where: str | Sequence[str] = (),
    bootstrap: int = 400,
    seed: int = 0,
    level: float = 0.9,
) -> FittedMixture:
    """Fit a mixing law to each of several validation losses, and find the shares of least loss within those tried.

    `losses`: columns, or their weights (default: every loss of a source, alike); a table's shares are its columns r1,
    r2, … (`proportion_domain_1`, `share 2`), a run's its data.mixture. `where`: which rows, of one size of model.
    BadInput for unusable rows; FitError where a law or the shares are not certain.
    """
    paths = [os.path.expanduser(path) for path in list_paths(sources)]
    weights = _read_weights(losses, paths)
    table = read_mixtures(paths, list(weights), dict(columns or {}), [where] if isinstance(where, str) else list(where))
    law = mixture_of(len(table.domains))
    shares = {f"r{i}": column for i, column in enumerate(table.shares.T, 1)}
    fits = {
        name: fit_law(
            shares | {"loss": values}, law, bootstrap=bootstrap, seed=seed, level=level, identify=False, cluster="none"
        )
        for name, values in table.losses.items()
    }
    best = best_shares(list(fits.values()), list(weights.values()), table.shares, level)
    total = sum(weights.values())
    even = {name: weight / total for name, weight in weights.items()}
    return FittedMixture(table.domains, even, fits, best, table.shares, table.notes, level)


def _read_weights(losses: Sequence[str] | Mapping[str, float], paths: Sequence[str]) -> dict[str, float]:
    weights = dict(losses) if isinstance(losses, Mapping) else dict.fromkeys(losses, 1.0)
    weights = weights or dict.fromkeys(find_losses(paths), 1.0)
    for name, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise BadInput(f"the weight of {name!r} is {weight:g}: it must be finite, and zero or more")
    if not weights:
        raise BadInput("no losses of several validation domains: name them, --losses=loss_web,loss_code")
    if not any(weights.values()):
        raise BadInput("all weights are zero: one loss at least must count")
    return weights


def read_mixtures(
    paths: Sequence[str], losses: Sequence[str], columns: dict[str, str], where: Sequence[str]
) -> MixtureTable:
    """Read the mixtures and losses of tables, or of folders of runs. BadInput for both at once, and unusable rows."""
    kinds = {os.path.isdir(path) for path in paths}
    if len(kinds) > 1:
        raise BadInput("mixtures are read from tables or from folders of runs, not from both at once")
    if kinds == {True}:
        if columns:
            raise BadInput("--columns names a table's columns, and these are runs: their data.mixture tells the shares")
        return _read_runs(paths, losses, where)
    tables = [_read_table(path, losses, columns, where) for path in paths]
    if any(table.domains != tables[0].domains for table in tables):
        raise BadInput("the tables have other domains: fit one by one")
    values = {name: np.concatenate([table.losses[name] for table in tables]) for name in losses}
    shares = np.concatenate([table.shares for table in tables])
    return MixtureTable(tables[0].domains, shares, values, [note for table in tables for note in table.notes])


def _read_table(path: str, losses: Sequence[str], columns: dict[str, str], where: Sequence[str]) -> MixtureTable:
    header = column_names(path)
    count = 0
    while f"r{count + 1}" in columns or fitting_columns(f"r{count + 1}", header, header):
        count += 1
    _check_count(count, f"{pathlib.Path(path).name}: shares are columns r1, r2, … or proportion_domain_1, …")
    law = mixture_of(count)
    by_loss = {}
    for name in losses:
        read = read_table(path, columns | {"loss": name}, (*law.columns, "loss"), where, law=law)
        by_loss[name] = read.rows
    rows = [row for row in zip(*by_loss.values(), strict=True) if all(each["val_loss"] is not None for each in row)]
    if not rows:
        raise BadInput(f"{pathlib.Path(path).name}: no row has all of {', '.join(losses)}")
    shares = np.array([[row[0][name] for name in law.columns] for row in rows], float)
    values = {name: np.array([row[i]["val_loss"] for row in rows], float) for i, name in enumerate(losses)}
    left = len(next(iter(by_loss.values()))) - len(rows)
    notes = [f"left out: {left} rows without one of the losses"] * bool(left)
    notes += _ask_groups([row[0] for row in rows])
    return MixtureTable([read.columns.get(name, name) for name in law.columns], _whole(shares, path), values, notes)


def _ask_groups(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for a text column that may tell rows of several laws apart, such as sizes of models."""
    for name in rows[0]:
        values = {str(row.get(name)) for row in rows}
        if isinstance(rows[0][name], str) and name != "name" and 1 < len(values) <= min(MOST_GROUPS, len(rows) // 2):
            first = sorted(values)[0]
            return [
                f"{name!r} has {len(values)} values: if their losses differ, take one: --where=\"{name} == '{first}'\""
            ]
    return []


def _read_runs(paths: Sequence[str], losses: Sequence[str], where: Sequence[str]) -> MixtureTable:
    """Mixtures of finished runs: those whose role is not fit are left out where any has that one."""
    every: list[dict[str, Any]] = [row for path in paths for row in read_grid(path)[0]]
    rows = filter_rows(every, where)
    if not rows:
        raise BadInput(f"--where={' and '.join(where)} leaves none of {len(every)} runs")
    known = all_columns(rows)
    for name in (name for name in losses if name not in known):
        raise BadInput(f"no run has {name!r}{nearest_hint(name, known)}")
    fitting = [row for row in rows if row.get("role") == "fit"] or rows
    done = [row for row in fitting if row["status"] == "done" and all(row.get(name) is not None for name in losses)]
    if not done:
        raise BadInput(f"none of {len(rows)} runs finished with all of {', '.join(losses)}")
    stages = [parse_mixture(str(row.get("data.mixture") or "")) for row in done]
    for row, stage in zip(done, stages, strict=True):
        if len(stage) != 1:
            raise BadInput(f"{row['name']}: data.mixture={row.get('data.mixture')!r} is not one mixture from step 0 on")
    domains = list(dict.fromkeys(name for stage in stages for name in stage[0].shares))
    _check_count(len(domains), "the runs' data.mixture")
    shares = np.array([[float(stage[0].shares.get(name, 0)) for name in domains] for stage in stages])
    values = {name: np.array([row[name] for row in done], float) for name in losses}
    left = len(rows) - len(done)
    notes = [f"left out: {left} runs of another role or without a result"] * bool(left)
    sizes = {(row["N"], row["D"]) for row in done}
    if len(sizes) > 1:
        N = min(size for size, _ in sizes)
        notes.append(
            f"the runs differ in size: {len(sizes)} pairs of N and D share one law; --where='N == {N}' takes one"
        )
    return MixtureTable(domains, shares, values, notes)


def _check_count(count: int, what: str) -> None:
    if not FEWEST_DOMAINS <= count <= MOST_DOMAINS:
        raise BadInput(f"{what}: {count} found, and a mixture has {FEWEST_DOMAINS} to {MOST_DOMAINS} domains")


def _whole(shares: np.ndarray, path: str) -> np.ndarray:
    """The shares [P, K], checked to sum to one in each row."""
    sums = shares.sum(1)
    odd = np.flatnonzero(np.abs(sums - 1) > 0.02)
    if len(odd):
        raise BadInput(f"{pathlib.Path(path).name}, row {odd[0] + 1}: the shares sum to {sums[odd[0]]:.4g}, not 1")
    whole_shares: np.ndarray = shares / sums[:, None]
    return whole_shares
