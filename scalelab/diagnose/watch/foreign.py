"""Curves of runs that another program trained: what their logs have, and a schedule that the user tells.

--schedule=NAME:warmup=STEPS,end=SHARE,decay=STEPS,steps=N   e.g. cosine:warmup=2000,end=0.1,steps=100000
"""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from scalelab import config as config_lib
from scalelab.diagnose.watch import curve as curve_lib
from scalelab.diagnose.watch.curve import MOST_POINTS, SIGNALS, Curve
from scalelab.errors import BadInput, nearest_hint
from scalelab.numbers.written import parse_whole
from scalelab.optim import schedules
from scalelab.record import records

PARTS = {"warmup": "schedule.warmup_steps", "end": "schedule.final_share", "decay": "schedule.decay_steps",
         "steps": "train.steps"}  # fmt: skip
IDLE = {"cosine": ("decay",), "linear": ("decay",), "constant": ("end", "decay"), "wsd": ()}  # parts without effect
EXAMPLE = "--schedule=cosine:warmup=2000,end=0.1,steps=100000"
FINISHED_SHARE = 0.98  # of the planned steps: such a run has logged its schedule to the end


def parse_schedule(text: str) -> dict[str, Any]:
    """Parse `cosine:warmup=…,end=…,steps=…` into config values by key. BadInput for anything else."""
    name, _, rest = text.partition(":")
    if name not in IDLE:
        raise BadInput(f"--schedule={text}: {name!r} is not a schedule{nearest_hint(name, IDLE)}; {EXAMPLE}")
    numbers: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, number = (side.strip() for side in part.partition("="))
        if not equals or key not in PARTS:
            raise BadInput(f"--schedule: {part!r} is not one of {', '.join(PARTS)}; {EXAMPLE}")
        if key in numbers:
            raise BadInput(f"--schedule={text}: {key} is given twice")
        if key in IDLE[name]:
            raise BadInput(f"--schedule: {part!r} has no effect with {name}; wsd has an end and a decay")
        try:
            numbers[key] = float(number) if key == "end" else parse_whole(number)
        except ValueError:
            raise BadInput(f"--schedule: {part!r} is not a number; {EXAMPLE}") from None
    values = {"schedule.name": name, "schedule.warmup_steps": 0, "schedule.final_share": 0.0}
    return values | {PARTS[key]: number for key, number in numbers.items()}


def read_foreign_curve(folder: pathlib.Path, ahead: bool = True, schedule: str | None = None) -> Curve:
    """Read the curve of an imported run. `ahead`: with its LR to the end, from `schedule` or the log of a whole run.

    The LR is () where neither tells it. BadInput for a schedule that is not one, or a run without training losses.
    """
    values, record = records.read_config(folder), records.read_record(folder)
    lines = records.read_metrics(folder)
    rows = [line for line in lines if "train_loss" in line]
    if not rows:
        raise BadInput(f"{folder.name} has no line of training loss: a forecast follows its curve")
    told = parse_schedule(schedule) if schedule else {}
    n_steps = int(told.get("train.steps", values["train"]["steps"]))
    signals = {name: curve_lib.read_column(rows, name) for name in SIGNALS}
    steps = np.array([line["step"] for line in rows], int)
    if n_steps < steps[-1]:
        raise BadInput(f"--schedule: steps={n_steps:,} is below step {steps[-1]:,}, which {folder.name} has logged")
    lr = _logged_lr(steps, signals["lr"], n_steps)
    warmup = told.get("schedule.warmup_steps", values.get("schedule", {}).get("warmup_steps"))
    if told and ahead:
        lr = _told_lr(told, n_steps)
    tokens = record.get("tokens", 0) / max(1, record["steps"]) * n_steps
    model = values.get("model", {})
    status = record.get("status", "stopped")
    is_short = record["steps"] < FINISHED_SHARE * n_steps
    status = "stopped" if status == "done" and is_short else status
    params = record.get("params", {})
    n_params = params.get("active", params.get("total", 0))
    return Curve(
        folder.name,
        folder,
        status,
        n_params,
        n_steps,
        tokens,
        6.0 * n_params * tokens,
        int(warmup) if warmup is not None else _peak_step(steps, signals["lr"]),
        1,
        "",
        (records.IMPORTED, record["source"].get("format"), None, model.get("vocab_size")),
        _ceiling(model, signals["train_loss"]),
        steps,
        signals,
        [(line["step"], line["val_loss"]) for line in lines if line.get("val_loss") is not None],
        records.read_events(folder),
        record.get("val_loss") if status == "done" else None,
        lr,
    )


def refuse_unknown_schedule(run: Curve) -> None:
    """BadInput for an imported run whose LR to the end nothing tells."""
    if run.family[:1] == (records.IMPORTED,) and run.val_loss is None and not run.lr.any():
        raise BadInput(
            f"{run.name} was trained by another program, and its schedule to the end is not known: {EXAMPLE}"
        )


def _logged_lr(steps: np.ndarray, lr: np.ndarray, n_steps: int) -> np.ndarray:
    """The LR at even places of a run that was logged to its end; () for another run."""
    whole = np.isfinite(lr)
    if whole.sum() < 2 or steps[-1] < FINISHED_SHARE * n_steps:
        return np.zeros(0)
    places = np.linspace(1, n_steps, min(n_steps, MOST_POINTS))
    return np.interp(places, steps[whole], lr[whole])


def _told_lr(told: Mapping[str, Any], n_steps: int) -> np.ndarray:
    """The LR [G] of a schedule that the user tells, over its peak."""
    config = config_lib.override(config_lib.default_tree(), {**told, "train.steps": n_steps, "optim.peak_lr": 1.0})
    places = np.linspace(0, n_steps - 1, min(n_steps, MOST_POINTS)).astype(int)
    return np.asarray(schedules.schedule_curves(config_lib.resolve(config), places)["lr"], float)


def _peak_step(steps: np.ndarray, lr: np.ndarray) -> int:
    """The first step at the highest logged LR; 0 without one."""
    return int(steps[np.nanargmax(lr)]) if np.isfinite(lr).any() else 0


def _ceiling(model: Mapping[str, Any], losses: np.ndarray) -> float:
    """ln V if the vocabulary is known, else the first logged loss."""
    vocab = model.get("vocab_size")
    finite = losses[np.isfinite(losses)]
    return math.log(vocab) if vocab else float(finite[0]) if len(finite) else math.inf
