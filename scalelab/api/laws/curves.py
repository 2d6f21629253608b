"""Loss curves of runs, tables or configs with the LR of every step, for the laws of curves (`laws/curves`)."""

import dataclasses
import os
import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scalelab import config as config_lib
from scalelab.api.arguments import STORED, Path, check_arguments, list_paths, several
from scalelab.api.door import Config, load_config
from scalelab.errors import BadInput, nearest_hint
from scalelab.index import grids
from scalelab.laws.curves.best_schedule import BestSchedule, find_best_schedule, write_schedule
from scalelab.laws.curves.curve import Curve, make_curve
from scalelab.laws.curves.fit import LEAST_ROWS, MOST_RESAMPLES, FittedCurves, Prediction
from scalelab.laws.curves.fit import fit_curves as fit_read_curves
from scalelab.laws.read.readers import read_raw_rows
from scalelab.numbers.written import parse_number
from scalelab.optim import schedules
from scalelab.record import listing, records

if TYPE_CHECKING:
    from ml_collections import ConfigDict

FIELDS = ("run", "step", "lr", "loss")  # columns of a table; for runs only the loss can be chosen
LOSSES = ("val_loss", "train_loss")  # metrics of a run: the first with enough rows is fitted
LR_DIGITS = 1e-4  # a logged LR may differ from its schedule's by this share of the peak
Source = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True, eq=False)
class CurveStudy:
    """A law of curves, what it predicts, and notes on the reading.

    `best`: the schedule of the lowest predicted final loss, if it was asked for; its curve is among the predictions.
    """

    fitted: FittedCurves
    predictions: list[Prediction]
    notes: list[str]
    best: BestSchedule | None = None


@check_arguments(sources=several(STORED))
def fit_curves(
    sources: Source | Sequence[Source],
    law: str = "annealing",
    *,
    columns: Mapping[str, str] | None = None,
    objective: str = "huber_log",
    delta: float | None = None,
    bootstrap: int = MOST_RESAMPLES,
    seed: int = 0,
    level: float = 0.9,
) -> FittedCurves:
    """Fit a law of the loss within a run (`scalelab fit --law=annealing`) to runs or a table.

    `sources`: runs' folders, folders of runs, or a table with columns run, step, lr and loss (`columns` renames them).
    `read_curve` and `schedule_of` give what `.predict` of the result takes. BadInput as the command; FitError where no
    optimum can be certified.
    """
    curves, _ = read_curves(list_paths(sources), columns)
    return fit_read_curves(
        curves, law, objective=objective, delta=delta, bootstrap=min(bootstrap, MOST_RESAMPLES), seed=seed, level=level
    )


@check_arguments(sources=several(STORED))
def predict_curves(
    sources: Source | Sequence[Source],
    law: str = "annealing",
    *,
    columns: Mapping[str, str] | None = None,
    predict_run: str | Sequence[str] = (),
    schedule_of: str | Sequence[str] = (),
    best_schedule: Path | None = None,
    objective: str = "huber_log",
    delta: float | None = None,
    bootstrap: int = MOST_RESAMPLES,
    seed: int = 0,
    level: float = 0.9,
) -> CurveStudy:
    """Fit without the runs of `predict_run`, and predict their curves and those under configs' schedules.

    `best_schedule`: a new Python file for the schedule of the lowest predicted final loss. BadInput as the command.
    """
    file = _new_module(best_schedule) if best_schedule else None
    columns = dict(columns or {})
    curves, notes = read_curves(list_paths(sources), columns)
    rest, held_out = _split_curves(curves, list(predict_run), columns)
    schedules = [_schedule_named(config) for config in list(schedule_of)]
    fitted = fit_read_curves(
        rest, law, objective=objective, delta=delta, bootstrap=min(bootstrap, MOST_RESAMPLES), seed=seed, level=level
    )
    predictions = [fitted.predict(curve, i) for i, curve in enumerate([*held_out, *schedules])]
    best = None
    if file:
        best = find_best_schedule(fitted)
        file.write_text(
            write_schedule(best, "The learning rate that ends lowest, by a fitted law.", _describe(best, law))
        )
        predictions.append(best.prediction)
    return CurveStudy(fitted, predictions, notes, best)


def _new_module(path: Path) -> pathlib.Path:
    """The path of a Python file that is not there yet. BadInput for another one."""
    file = pathlib.Path(path).expanduser()
    if file.suffix != ".py" or not file.stem.isidentifier() or file.exists() or not file.absolute().parent.is_dir():
        raise BadInput(
            f"--best-schedule={path} must be a new Python file in a folder that is there, as in best_schedule.py"
        )
    return file


def _describe(best: BestSchedule, law: str) -> str:
    loss, low, high = best.prediction.final
    return textwrap.fill(
        f"Law {law}: loss {loss:.4f} ({low:.4f} to {high:.4f}) after {len(best.curve.lr)} steps, "
        f"{best.curve.warmup + 1} of them warm-up, at a peak of {best.curve.lr.max():g}. "
        "How well it holds for other lengths, peaks or models was not measured.",
        118,
    )


def _split_curves(curves: list[Curve], names: list[str], columns: Mapping[str, str]) -> tuple[list[Curve], list[Curve]]:
    """Split into (curves to fit, curves to predict): a predicted run is not fitted."""
    held_out = []
    for name in names:
        inside = [curve for curve in curves if curve.name == name or _is_same_folder(curve.name, name)]
        if inside:
            held_out += inside
        elif pathlib.Path(name).exists():
            held_out.append(read_curve(name, columns))
        else:
            hint = nearest_hint(name, [curve.name for curve in curves])
            raise BadInput(f"--predict-run={name}: no such folder, and no run of the sources{hint}")
    rest = [curve for curve in curves if curve not in held_out]
    if not rest:
        raise BadInput("--predict-run holds out every run of the sources, and none is left to fit")
    return rest, held_out


def _is_same_folder(one: str, other: str) -> bool:
    return pathlib.Path(other).is_dir() and pathlib.Path(one).resolve() == pathlib.Path(other).resolve()


def _schedule_named(config: str) -> Curve:
    try:
        return schedule_of(config)
    except BadInput as mistake:
        raise BadInput(f"--schedule-of={config}: {mistake}") from None


@check_arguments(source=STORED)
def read_curve(source: Source, columns: Mapping[str, str] | None = None) -> Curve:
    """Read the curve of one run's folder. BadInput for a folder of several runs."""
    curves, _ = read_curves([source], columns)
    if len(curves) > 1:
        raise BadInput(f"{str(source)!r} holds {len(curves)} runs: name one, e.g. {curves[0].name}")
    return curves[0]


def read_curves(sources: Sequence[Source], columns: Mapping[str, str] | None = None) -> tuple[list[Curve], list[str]]:
    """Read (curves, notes) of every run in folders and tables. BadInput for an absent source, or runs of two models."""
    columns, curves, notes = dict(columns or {}), [], []
    folders: list[pathlib.Path] = []
    for source in (pathlib.Path(os.path.expanduser(source)) for source in sources):
        if not source.exists():
            raise BadInput(f"no file or folder {str(source)!r}")
        if source.is_dir():
            runs, left_out = grids.split_runs(source, {path.name: path for path in listing.run_folders(source)})
            folders += runs.values()
            notes += [grids.describe_left_out(left_out)] if left_out else []
        else:
            curves += _table_curves(source, columns)
            notes.append(f"{source.name}: the LR between rows is interpolated, and rises evenly up to the first row")
    if folders:
        loss = _choose_loss(folders, columns)
        _refuse_two_models(folders)
        curves += [_run_curve(folder, loss) for folder in folders]
        notes.insert(0, f"{loss} of {len(folders)} runs; the LR of every step from each run's config")
    return curves, notes


@check_arguments()
def schedule_of(config: Config) -> Curve:
    """Make a curve without losses: the schedule of a config file, a shipped config's name or a config tree."""
    resolved = load_config(config)
    return make_curve(str(config) if isinstance(config, str | os.PathLike) else "the config", _every_lr(resolved))


def _every_lr(config: "ConfigDict") -> np.ndarray:
    return np.asarray(schedules.schedule_curves(config, np.arange(config.train.steps))["lr"], float)


def _run_curve(folder: pathlib.Path, loss: str) -> Curve:
    from scalelab.train.lineage.facts import config_from_facts

    lr = _every_lr(config_lib.resolve(config_from_facts({"config": records.read_config(folder)}), stored=True))
    lines = records.read_metrics(folder)
    for line in lines:
        logged, step = line.get("lr"), line["step"]
        if logged is not None and 0 < step <= len(lr) and abs(logged - lr[step - 1]) > LR_DIGITS * lr.max():
            raise BadInput(
                f"{folder}: its LR at step {step} was {logged:.6g}, and by its config {lr[step - 1]:.6g}: its schedule "
                "changed on the way. Give a table with columns run, step, lr, loss instead"
            )
    rows = [(line["step"], line[loss]) for line in lines if loss in line]
    if any(value is None or not np.isfinite(value) for _, value in rows):
        raise BadInput(f"{folder}: its {loss} is not finite at some step: a run that diverged can't be fitted")
    steps, losses = zip(*rows, strict=True) if rows else ((), ())
    return make_curve(str(folder), lr, steps, losses)


def _choose_loss(folders: Sequence[pathlib.Path], columns: Mapping[str, str]) -> str:
    """Choose the metric to fit: the one of --columns=loss=…, else val_loss if all runs have enough, else train_loss."""
    counts: dict[str, list[int]] = {}
    for place, folder in enumerate(folders):
        for line in records.read_metrics(folder):
            for name in line:
                counts.setdefault(name, [0] * len(folders))[place] += 1
    if "loss" in columns:
        if columns["loss"] not in counts:
            raise BadInput(f"--columns: no run logs {columns['loss']!r}{nearest_hint(columns['loss'], counts)}")
        return columns["loss"]
    return next((name for name in LOSSES if min(counts.get(name, [0])) >= LEAST_ROWS), LOSSES[-1])


def _refuse_two_models(folders: Sequence[pathlib.Path]) -> None:
    """BadInput if parameters or tokens a step differ: a law of curves holds for one model and batch."""
    first: tuple[Any, Any, pathlib.Path] | None = None
    for folder in folders:
        config, record = records.read_config(folder), records.read_sound_record(folder)
        size = record.get("params", {}).get("total")
        batch = config["train"]["global_batch"] * config["model"]["seq_len"]
        if first and (size, batch) != first[:2]:
            raise BadInput(
                f"{folder} has {size} parameters and {batch} tokens a step, {first[2]} {first[0]} and {first[1]}: "
                "a law of curves holds for one model and batch"
            )
        first = first or (size, batch, folder)


def _table_curves(path: pathlib.Path, columns: Mapping[str, str]) -> list[Curve]:
    """Read the curves of a table: one for each value of column `run`, or a single one without that column."""
    lines = read_raw_rows(path)
    header = list(dict.fromkeys(key for line in lines for key in line))
    names = {field: columns.get(field, field) for field in FIELDS}
    for field, name in names.items():
        if name not in header and (field != "run" or "run" in columns):
            raise BadInput(
                f"{path.name}: no column {name!r} for {field}{nearest_hint(name, header)}; a table of curves has "
                "run, step, lr and loss (others by --columns=loss=…)"
            )
    groups: dict[str, list[tuple[float, ...]]] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = tuple(parse_number(str(line.get(names[field], "")), field) for field in FIELDS[1:])
        except ValueError:
            raise BadInput(f"{path.name}, row {number}: step, lr and loss must be numbers") from None
        groups.setdefault(str(line.get(names["run"], path.stem)), []).append(row)
    curves = []
    for run, rows in groups.items():
        steps, lr, loss = np.array(sorted(rows)).T
        if steps[0] < 1 or (steps % 1).any():
            raise BadInput(f"{path.name}, run {run}: steps are whole numbers from 1 on, and {steps[0]:g} is not")
        every = np.interp(np.arange(1, steps[-1] + 1), [0, *steps], [0, *lr])
        curves.append(make_curve(run, every, steps, loss))
    return curves
