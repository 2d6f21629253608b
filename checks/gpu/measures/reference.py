"""The reference run and the reference study: real text, a curve, and a prediction that is written before its run."""

import functools
import pathlib
from typing import Any

from checks.gpu.measures import commands
from checks.gpu.question import Context, OutOfTime, Question
from scalelab.record import records

CURVE_POINTS = 60  # of the curve of a row; metrics.jsonl has all


def ask_run(cost_s: float) -> list[Question]:
    """The reference run, from its first step to its end."""
    return [Question("run", cost_s, train_reference)]


def ask_grid(cost_s: float) -> list[Question]:
    """The reference study: four budgets by four sizes, a law, a prediction and the run that it is about."""
    prediction = functools.partial(run_grid, until="prediction")
    return [Question("prediction", cost_s, prediction), Question("score", cost_s, run_grid)]


def train_reference(context: Context) -> dict[str, Any]:
    """Train, or go on with, the reference run: its curve, rates and checksums."""
    run = context.folder / "run"
    argv = ["-m", "scalelab", "train", *context.settings.reference, f"--workdir={run}"]
    done = commands.run_command(argv, context.folder / "train.json", context)
    record = records.read_record(run)
    return {
        "steps": done["final_step"], "val_loss": done["val_loss"], "params_digest": done["params_digest"],
        "data": record["data"], "N": record["params"], "curve": read_curve(run),
    }  # fmt: skip


def read_curve(run: pathlib.Path) -> list[dict[str, Any]]:
    """At most CURVE_POINTS lines of a run's metrics, with equal steps between, and every evaluation."""
    keys = ("step", "train_loss", "val_loss", "tokens_per_s", "mfu")
    lines = [{key: line[key] for key in keys if key in line} for line in records.read_metrics(run)]
    every = -(-len(lines) // CURVE_POINTS)
    return [line for i, line in enumerate(lines) if "val_loss" in line or i % every == 0 or i == len(lines) - 1]


def run_grid(context: Context, until: str = "end") -> dict[str, Any]:
    """Run, or go on with, the study: until its prediction is written, or to the score."""
    study = context.folder / "study"
    argv = ["-m", "scalelab.experiments.isoflop", *context.settings.grid, f"--workdir={study}"]
    prediction = study / "prediction.json"
    if until == "prediction":
        if not prediction.exists():
            stop_at = functools.partial(pathlib.Path.exists, prediction)
            commands.run_until(argv, context.folder / "study.log", context, stop_at)
        if not prediction.exists():
            raise OutOfTime("the grid is not finished; the next call goes on with it")
        return records.read_json(prediction)
    return commands.run_command(argv, context.folder / "summary.json", context)
