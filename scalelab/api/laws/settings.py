"""The best settings of any mix of run folders and tables, for `fit --best-of` and `api.best_settings`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.api.laws.fit_rows import read_sources
from scalelab.errors import BadInput, nearest_hint
from scalelab.laws.fits.study import N_COLUMNS, default_convention, select_rows
from scalelab.laws.law.law import Law
from scalelab.laws.read.columns import fitting_columns, known_fields, parse_columns, write_columns
from scalelab.laws.read.points import WIDEST_VALUE, merge_near
from scalelab.laws.read.raw_grid import SETTINGS
from scalelab.laws.use.settings.best import BestSettings, check_names, fit_best_settings
from scalelab.record.identity import is_identity_key
from scalelab.sweep.answer.settings import SEED_KEY, group_rows, setting_keys, varying_columns

SIZES = ("N", "D", "U", *SETTINGS)  # fields in which replications do not differ
SEED_COLUMNS = (SEED_KEY, "seed")
LOST_STATUSES = ("diverged", "failed")
NOISY = 0.02  # scatter of a run's loss above which it is asked whether it is that of one batch
NEAR_LOSS = 0.05  # log ratio of another column to the loss, below which it may be a better one
# Config values that a ladder rule made from this fit must hold fixed, if the runs record them.
SHARED_KEYS = (
    "optim.name", "parametrization.name", "optim.beta2", "model.seq_len", "model.vocab_size", "schedule.name",
    "train.global_batch",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class ReadSettings:
    """Best settings, with the `table` {column: [P]} they were read from, the convention of N, and what was left out."""

    best: BestSettings
    table: dict[str, np.ndarray]
    n_runs: int
    n_convention: str
    columns: Mapping[str, str]
    notes: tuple[str, ...]
    excluded: tuple[dict[str, str], ...]
    shared: dict[str, Any]


def read_best_settings(
    sources: Sequence[str],
    best_of: Sequence[str],
    per: Sequence[str],
    over: Mapping[str, Sequence[str]],
    *,
    columns: str | None = None,
    n_convention: str | None = None,
    where: Sequence[str] = (),
    drop_top_loss: int = 0,
    level: float = 0.9,
    finished: Sequence[str] = (),
) -> ReadSettings:
    """Read runs or tables, and find their best settings. BadInput if a column or the convention can't be used."""
    check_names(best_of, per)
    law = Law("best settings", max, (*per, *best_of), {}, "loss")  # only its columns and target are read
    named = parse_columns(columns, known_fields(law))
    table = read_sources(sources, law, named, n_convention, where, finished=finished)
    size = N_COLUMNS[n_convention or default_convention(table.rows)]
    fields = {field: size if field == "N" else field for field in dict.fromkeys((*per, *best_of))}
    _check_fields(table.rows, fields)
    rows, excluded = select_rows(table.rows, [*fields.values(), "val_loss"], "val_loss", drop_top_loss)
    rows, lost = _without_lost_seeds(rows, table.rows, list(fields.values()))
    if not rows:
        raise BadInput(f"none of {len(table.rows)} runs has a loss and {', '.join(fields)}: {excluded[:1]}")
    _refuse_mixed(rows, fields, best_of, per)
    values = {field: np.array([float(row[column]) for row in rows]) for field, column in fields.items()}
    values["loss"] = np.array([float(row["val_loss"]) for row in rows])
    if seed := next((name for name in SEED_COLUMNS if all(name in row for row in rows)), None):
        values["seed"] = np.array([str(row[seed]) for row in rows])
    best = fit_best_settings(values, best_of, per, over, level)
    return ReadSettings(
        best,
        values,
        len(rows),
        table.n_convention,
        table.columns,
        (*table.notes, *_question_noise(best.noise.sd, rows, table.columns.get("loss", "loss"))),
        (*excluded, *lost),
        _shared_values(rows),
    )


def _question_noise(noise: float, rows: Sequence[Mapping[str, Any]], column: str) -> list[str]:
    """A line where losses scatter more than final losses do: those of single batches, which get worse in small ones.

    Step Law's `loss` is one: its error is about .14 / sqrt(batch), and all runs of a group and a batch share it, so
    that the best batch is luck. Their `smooth loss` has 0.13 %.
    """
    if not (np.isfinite(noise) and noise > NOISY):
        return []
    loss = np.array([float(row["val_loss"]) for row in rows])
    near = []
    for name in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(name) for row in rows]
        if (
            "loss" in name.casefold()
            and name not in (column, "loss", "val_loss")
            and all(isinstance(value, float) and value > 0 for value in values)
        ):
            apart = np.log(np.array(values, float) / loss)
            near += [name] if 0 < np.median(np.abs(apart)) < NEAR_LOSS else []
    hint = f" {near[0]!r} is near it: --columns={write_columns({'loss': near[0]})}" if near else ""
    return [
        f"WARNING: a run scatters by {noise:.2%} of its loss, where final losses scatter by less than 1%: is "
        f"{column!r} the loss of one batch, whose error all runs of a batch size share?{hint}"
    ]


def _shared_values(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values, among those a ladder's rule holds fixed, that all runs share; also their share of warm-up."""
    shared = {
        key: rows[0][key] for key in SHARED_KEYS if len({repr(row.get(key)) for row in rows}) == 1 and key in rows[0]
    }
    if all("schedule.warmup_steps" in row and row.get("train.steps") for row in rows):
        shared["warmup_share"] = float(np.median([row["schedule.warmup_steps"] / row["train.steps"] for row in rows]))
    return shared


def _check_fields(rows: Sequence[Mapping[str, Any]], fields: Mapping[str, str]) -> None:
    """Raise BadInput for a column that no run has, or that holds text."""
    for field, column in fields.items():
        values = [row[column] for row in rows if row.get(column) is not None]
        if not values:
            known = sorted({key for row in rows for key in row if isinstance(row[key], int | float)})
            raise BadInput(f"no run has {field!r}{nearest_hint(field, known)}")
        text = next((value for value in values if isinstance(value, bool | str)), None)
        if text is not None:
            raise BadInput(
                f"{field} is {text!r} in some runs: a best setting and its law need numbers; take one value by --where"
            )


def _without_lost_seeds(
    rows: Sequence[Mapping[str, Any]], every: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> tuple[list[Mapping[str, Any]], list[dict[str, str]]]:
    """Drop settings with a lost seed: the mean of the seeds that are left would be luck."""
    lost = {_key(row, columns) for row in every if row.get("status") in LOST_STATUSES}
    out = [row for row in rows if _key(row, columns) in lost]
    reason = "another seed of this setting diverged or failed"
    return [row for row in rows if row not in out] if out else list(rows), [
        {"name": str(row.get("name", "?")), "reason": reason} for row in out
    ]


def _key(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{row[name]:.9g}" if isinstance(row.get(name), int | float) else "" for name in columns)


def _refuse_mixed(
    rows: Sequence[Mapping[str, Any]], fields: Mapping[str, str], best_of: Sequence[str], per: Sequence[str]
) -> None:
    """Raise BadInput if runs of one setting differ in more than the seed: they are not replications."""
    also = [*_unlike_sizes(rows, list(fields.values()))]
    varying = [name for name in varying_columns(rows) if "." in name and is_identity_key(name)]
    columns = dict.fromkeys([*fields.values(), *varying])  # few of many: groups can't differ in others
    groups = group_rows([{key: row.get(key) for key in columns} for row in rows], list(fields.values()))
    also += [key for group in groups for key in setting_keys(group) if is_identity_key(key)]
    if also:
        names = list(dict.fromkeys(also))
        sizes = [name for name in names if name in ("N", "D", "U")]
        settings = [name for name in names if name not in sizes]
        advice = f"--best-of={','.join([*best_of, *settings])} --per={','.join([*per, *sizes])}"
        raise BadInput(
            f"runs that are equal in {', '.join(fields)} differ in {', '.join(names)} too, which is not replication: "
            f"{advice}, or take one value by --where"
        )


def _unlike_sizes(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """The table's other sizes and settings (by usual names) in which rows of equal `columns` differ."""
    table = {name: [row.get(name) for row in rows] for name in rows[0] if "." not in name}
    numeric = [name for name, values in table.items() if all(isinstance(value, int | float) for value in values)]
    names = dict.fromkeys(name for field in SIZES for name in fitting_columns(field, numeric, numeric))
    near = zip(*(merge_near([row[name] for row in rows]).tolist() for name in columns), strict=True)
    groups = group_rows([{"setting": each, "row": row} for each, row in zip(near, rows, strict=True)], ["setting"])
    spans = {name: max(_factor([each["row"][name] for each in group]) for group in groups) for name in names}
    return [name for name, factor in spans.items() if name not in columns and factor > 1 + WIDEST_VALUE]


def _factor(values: Sequence[float]) -> float:
    return max(values) / min(values) if min(values) > 0 else 1.0
