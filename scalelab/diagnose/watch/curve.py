"""A run as known at a step: its logged curve, its schedule to the end, and its place in the family."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.config.steps import schedule_steps
from scalelab.errors import BadInput
from scalelab.optim import schedules
from scalelab.record import records
from scalelab.train.lineage.facts import config_from_facts

MOST_POINTS = 4096  # most steps at which a schedule is read, evenly
PLACES = np.linspace(0.02, 1.0, 50)  # shares of a run at which two schedules are compared
SIGNALS = ("train_loss", "grad_norm", "update_norm", "param_norm", "lr", "skipped", "tokens_per_s", "time")


@dataclasses.dataclass(frozen=True)
class Curve:
    """A run up to its last logged step. `signals`: {name: [n]} at `steps` [n]; `evaluations`: (step, val_loss).

    `n_steps`, `n_tokens`, `flops` are those of the whole run. `lr` [G] is the schedule at G <= 4,096 even places of the
    run; () if only its past is needed. `val_loss`: the final one of a finished run, else None.
    """

    name: str
    folder: pathlib.Path
    status: str
    n_params: int
    n_steps: int
    n_tokens: float
    flops: float
    warmup: int
    devices: int
    device: str
    family: tuple[Any, ...]
    ceiling: float
    steps: np.ndarray
    signals: Mapping[str, np.ndarray]
    evaluations: Sequence[tuple[int, float]]
    events: Sequence[Mapping[str, Any]]
    val_loss: float | None
    lr: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))

    @property
    def step(self) -> int:
        """The last logged step; 0 before the first."""
        return int(self.steps[-1]) if len(self.steps) else 0

    @property
    def progress(self) -> float:
        """Share of the steps taken so far."""
        return self.step / self.n_steps

    @property
    def losses(self) -> np.ndarray:
        """Logged training losses [n]."""
        return self.signals["train_loss"]

    def until(self, step: int) -> "Curve":
        """Return the run as known at `step`, without later lines, events and result."""
        seen = self.steps <= step
        return dataclasses.replace(
            self,
            status="running" if step < self.n_steps else self.status,
            steps=self.steps[seen],
            signals={name: values[seen] for name, values in self.signals.items()},
            evaluations=[pair for pair in self.evaluations if pair[0] <= step],
            events=[event for event in self.events if event["step"] is not None and event["step"] <= step],
            val_loss=self.val_loss if step >= self.n_steps else None,
        )

    def mean_log_loss(self, low: float, high: float) -> float:
        """Mean of ln loss over the lines in (low, high], shares of the whole run; nan without a line."""
        shares = self.steps / self.n_steps
        inside = (shares > low) & (shares <= high) & np.isfinite(self.losses) & (self.losses > 0)
        return float(np.log(self.losses[inside]).mean()) if inside.any() else math.nan

    def schedule_shape(self) -> np.ndarray:
        """LR over its peak at `PLACES`: from the schedule to the end if it is known, else from the log."""
        if len(self.lr):
            values, shares = self.lr, (np.arange(len(self.lr)) + 1) / len(self.lr)
        else:
            values, shares = self.signals["lr"], self.steps / self.n_steps
        peak = float(np.nanmax(values)) if len(values) else 0.0
        return np.interp(PLACES, shares, values / peak) if peak > 0 else np.zeros(len(PLACES))


def read_curve(folder: pathlib.Path, ahead: bool = True) -> Curve:
    """Read a run's folder; with `ahead` also its schedule to the end. BadInput if it is not a run, or damaged."""
    if not (folder / "config.json").exists():
        raise BadInput(f"{str(folder)!r} is not a run folder: it has no config.json")
    values, record = records.read_config(folder), records.read_sound_record(folder)
    lines = records.read_metrics(folder)
    config = config_from_facts({"config": values})
    n_steps, n_tokens = config.train.steps, schedule_steps.tokens_before(config, config.train.steps)
    rows = [line for line in lines if "train_loss" in line]
    scored = [(line["step"], line["val_loss"]) for line in lines if line.get("val_loss") is not None]
    status = record.get("status", "starting")
    done = status == "done" and record.get("steps", 0) >= n_steps
    data = record.get("data", {})
    return Curve(
        folder.name,
        folder,
        status,
        _count_active(record),
        n_steps,
        n_tokens,
        record.get("flops_per_token", {}).get("exact", 0.0) * n_tokens,
        config.schedule.warmup_steps or 0,
        record.get("mesh", {}).get("devices", 1),
        str(record.get("device", "")),
        (data.get("source"), data.get("tokenizer"), data.get("fingerprint"), config.model.vocab_size),
        math.log(config.model.vocab_size),
        np.array([line["step"] for line in rows], int),
        {name: read_column(rows, name) for name in SIGNALS},
        scored,
        records.read_events(folder),
        record.get("val_loss") if done else None,
        _schedule(config, n_steps) if ahead else np.zeros(0),
    )


def _count_active(record: Mapping[str, Any]) -> int:
    """Parameters that a token uses, which laws of compute count; of an earlier version's record all."""
    params = record.get("params", {})
    return params.get("active", params.get("total", 0))


def read_column(rows: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Column of a logged value [n], nan where it is missing or null."""
    return np.array([math.nan if row.get(name) is None else row[name] for row in rows], float)


def _schedule(config: Any, n_steps: int) -> np.ndarray:
    places = np.linspace(0, n_steps - 1, min(n_steps, MOST_POINTS)).astype(int)
    return np.asarray(schedules.schedule_curves(config, places)["lr"], float)
