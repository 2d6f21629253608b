"""Check what `scalelab watch` says of stopping, decaying and going on, by really branching runs.

    python -m checks.diagnosis.choices --workdir=runs/choices [--json[=PATH]]

Four runs under wsd are asked at 30 and 50 % of training, as `scalelab watch` asks: the loss if they stop now, decay now
or go on. Then each decay is trained, as a branch from that checkpoint; a stop is the evaluation at that step, going on
is the run's own end. Writes `checks/results/choices.json` and `.md`. Four minutes of CPU; run it again to resume.

    python -m checks.diagnosis.choices --workdir=runs/choices
"""

import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from checks.shared import RESULTS, command_line, result_header
from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.__main__ import main as run_command
from scalelab.cli.parser import folder_path
from scalelab.diagnose.watch.curve import Curve, read_curve
from scalelab.diagnose.watch.forecast import forecast_run
from scalelab.errors import BadInput, WorkFailed
from scalelab.experiments.shared import markdown_table, publish_result, train_trials
from scalelab.plan.sweep.sweep import PlannedStudy
from scalelab.record import records

ROOT = pathlib.Path(__file__).parents[2]
SMALL = {
    "model.d_model": "32", "model.seq_len": "64", "train.global_batch": "8", "train.steps": "800",
    "schedule.name": "wsd", "schedule.decay_share": "0.2", "schedule.final_share": "0", "log.every_steps": "4",
    "eval.every_steps": "80", "checkpoint.every_steps": "80", "checkpoint.keep_last": "20",
}  # fmt: skip
LRS, SEEDS, ASKED = (3e-3, 1e-2), (0, 1), (240, 400)
CHOICES = ("stop now", "decay now", "go on")


def make_trunks() -> dict[str, ConfigDict]:
    """{name: config} of the runs that are asked."""
    base = config_lib.load(ROOT / "configs" / "tiny.py", SMALL)
    return {
        f"lr{lr:g}-seed{seed}": config_lib.resolve(config_lib.override(base, {"optim.peak_lr": lr, "train.seed": seed}))
        for lr in LRS
        for seed in SEEDS
    }


def check_step(folder: pathlib.Path, name: str, step: int) -> list[dict[str, Any]]:
    """A row for each choice at `step` of a run: the loss that was forecast, and the one that was measured."""
    run = read_curve(folder / "runs" / name)
    forecast = forecast_run(run.until(step))
    said = {row["choice"]: row for row in forecast.choices}
    measured = {
        "stop now": dict(run.evaluations)[step], "go on": run.val_loss,
        "decay now": train_branch(folder, run, step, said["decay now"]["steps"]),
    }  # fmt: skip
    return [{"run": name, "step": step, "choice": choice, "steps": said[choice]["steps"],
             "forecast": said[choice]["loss"], "measured": measured[choice],
             "error": said[choice]["loss"] / measured[choice] - 1} for choice in CHOICES]  # fmt: skip


def train_branch(folder: pathlib.Path, run: Curve, step: int, steps: int) -> float:
    """The final validation loss of the run if it decays over `steps` from `step` on; WorkFailed if it does not end."""
    place = folder / "branches" / f"{run.name}-{step}"
    arguments = [f"--branch-from={run.folder}@{step}", f"--config.schedule.decay_steps={steps}", f"--workdir={place}"]
    if not (place / "record.json").exists() or records.read_record(place).get("status") != "done":
        code = run_command(["train", *arguments])
        if code:
            raise WorkFailed(f"the branch {place} ended with {code}")
    return float(records.read_record(place)["val_loss"])


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By choice: mean error, its root mean square and its largest size, relative to the measured loss."""
    errors = {choice: np.array([row["error"] for row in rows if row["choice"] == choice]) for choice in CHOICES}
    return {
        choice: {
            "n": len(each),
            "mean": float(each.mean()),
            "rms": math.sqrt(float(np.mean(each**2))),
            "largest": float(np.abs(each).max()),
        }
        for choice, each in errors.items()
    }


def count_orders(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """(how often the forecasts put the three choices into the measured order, how often they were asked)."""
    cells = {(row["run"], row["step"]) for row in rows}
    right = 0
    for cell in cells:
        each = [row for row in rows if (row["run"], row["step"]) == cell]
        orders = [sorted(each, key=lambda row: row[key]) for key in ("forecast", "measured")]
        right += [row["choice"] for row in orders[0]] == [row["choice"] for row in orders[1]]
    return right, len(cells)


def format_page(result: Mapping[str, Any]) -> str:
    """The result as Markdown."""
    right, total = result["orders"]
    lines = [
        "# Stop now, decay now, go on: forecasts against branches that were trained", "",
        f"`{result['command']}`, {result['date']}: {result['machine']}", "",
        f"{len(LRS) * len(SEEDS)} runs of {SMALL['train.steps']} steps, two blocks of width {SMALL['model.d_model']} "
        f"on bytes, wsd with a decay over the last 20 %, asked at steps {ASKED[0]} and {ASKED[1]} from their own curve "
        "alone. Forecasts of the validation loss, in nats a token:", "",
        *markdown_table(
            ("run", "step", "choice", "steps to take", "forecast", "measured", "error"),
            [[row["run"], str(row["step"]), row["choice"], str(row["steps"]), f"{row['forecast']:.3f}",
              f"{row['measured']:.3f}", f"{row['error']:+.1%}"] for row in result["rows"]],
        ), "",
        *markdown_table(
            ("choice", "asked", "mean error", "root mean square", "largest"),
            [[choice, str(row["n"]), f"{row['mean']:+.1%}", f"{row['rms']:.1%}", f"{row['largest']:.1%}"]
             for choice, row in result["summary"].items()],
        ), "",
        f"The three choices stood in the measured order in {right} of {total}. One size, one text: the errors say "
        "little about others. A decay now is trained by `scalelab train --branch-from=RUN@STEP`.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def plan(arguments: Sequence[str]) -> PlannedStudy:
    """The runs that are asked (for `scalelab plan --sweep`); their branches come on top."""
    return PlannedStudy(make_trunks())


def main(argv: Sequence[str]) -> int:
    """Run the study. Exit code: 0 measured, 1 a run failed, 2 bad input, 75 stopped."""
    return guarded("choices", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("diagnosis.choices", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where the runs go; again to resume")
    options = parser.parse_args(argv)
    if options.workdir is None:
        raise BadInput("--workdir=DIR is needed: where the runs go")
    trunks = make_trunks()
    train_trials(options.workdir, trunks)
    rows = [row for name in trunks for step in ASKED for row in check_step(options.workdir, name, step)]
    result = result_header("diagnosis.choices", argv) | {
        "rows": rows,
        "summary": summarise(rows),
        "orders": count_orders(rows),
    }
    return publish_result(RESULTS, "choices", result, format_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
