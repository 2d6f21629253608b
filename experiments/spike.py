"""Provoke a loss spike, and cure it: no clipping and no warm-up, clipping alone, warm-up alone, both.

    python -m experiments.spike --quick --workdir=runs/spike [--json[=PATH]] [--config.group.key=value …]

SGD with momentum at a learning rate where most runs without cures diverge. Of four lower rates the best one, with both
cures, is chosen on seeds of its own; the arms are compared with it on other seeds, paired, so the choice is counted in.
With both cures the loss should be within 1 % of the best rate's. All runs differ in traced numbers only, so they are
one program. Five seeds are reported with --quick, else ten. Writes
results/spike.{json,md,png} beside this file with --quick and the default config, else into the workdir. Run it again to
resume.

    scalelab study spike --quick --workdir=runs/spike
"""

import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import folder_path
from scalelab.errors import BadInput
from scalelab.experiments.shared import (
    RESULTS,
    command_line,
    markdown_table,
    publish_result,
    result_header,
    train_trials,
)
from scalelab.plan.sweep.sweep import PlannedStudy
from scalelab.record import listing, records
from scalelab.report.figures.raceplot import plot_arms
from scalelab.report.figures.style import write_figure
from scalelab.sweep.answer.differences import LEVEL, mean_difference

ROOT = pathlib.Path(__file__).parent.parent
LRS = (0.15, 0.2, 0.3, 0.42)  # tried with both cures
SPIKE_LR = 0.6  # where the cures are compared: without them most runs diverge
WARMUP_STEPS = 100
NO_CLIP = 1e9
ARMS = {  # arm -> what it sets
    "neither": {"optim.clip_norm": NO_CLIP, "schedule.warmup_steps": 0},
    "clip": {"optim.clip_norm": 1.0, "schedule.warmup_steps": 0},
    "warm-up": {"optim.clip_norm": NO_CLIP, "schedule.warmup_steps": WARMUP_STEPS},
    "both": {"optim.clip_norm": 1.0, "schedule.warmup_steps": WARMUP_STEPS},
}
CHOOSING_SEEDS = (100, 101, 102)  # they choose the best LR, and are not reported
GOAL = 0.01  # largest excess of "both" over the best LR's loss, as a share of it


def make_trials(base: ConfigDict, seeds: Sequence[int]) -> dict[str, ConfigDict]:
    """{name: config}: the arms at SPIKE_LR on the reported seeds, and "both" at every lower LR on all seeds."""
    points = [(arm, SPIKE_LR, seed) for arm in ARMS for seed in seeds]
    points += [("both", lr, seed) for lr in LRS for seed in (*CHOOSING_SEEDS, *seeds)]
    made = {}
    for arm, lr, seed in points:
        values = {"optim.peak_lr": lr, "train.seed": seed} | ARMS[arm]
        made[trial_name(arm, lr, seed)] = config_lib.resolve(config_lib.override(base, values))
    return made


def trial_name(arm: str, lr: float, seed: int) -> str:
    """The name of a run's folder."""
    return f"{arm}-lr{lr:g}-seed{seed}"


def choose_lr(losses: Mapping[str, float]) -> float:
    """The LR with the least mean loss under both cures, on the seeds that only choose."""
    return min(LRS, key=lambda lr: np.mean([losses[trial_name("both", lr, seed)] for seed in CHOOSING_SEEDS]))


def compare_arms(losses: Mapping[str, float], curves: Mapping[str, list[float]], seeds: Sequence[int]) -> dict:
    """The best LR, and one row per arm: losses by seed, largest rise, and the excess over the best LR's loss.

    `losses`: final validation losses by run (inf: diverged); `curves`: training losses of each step, by run.
    """
    lr = choose_lr(losses)
    best = {seed: losses[trial_name("both", lr, seed)] for seed in seeds}
    rows = []
    for arm in ARMS:
        names = {seed: trial_name(arm, SPIKE_LR, seed) for seed in seeds}
        measured = {seed: losses[name] for seed, name in names.items()}
        gap = mean_difference(measured, best)
        mean = float(np.mean([*best.values()]))
        rows.append(
            {
                "arm": arm,
                "losses": [*measured.values()],
                "diverged": sum(map(math.isinf, measured.values())),
                "largest_rise": max(_largest_rise(curves[name]) for name in names.values()),
                "excess": gap and gap.mean / mean,
                "interval90": gap and [gap.low / mean, gap.high / mean],
            }
        )
    return {"best_lr": lr, "best_losses": [*best.values()], "arms": rows}


def _largest_rise(curve: Sequence[float]) -> float:
    """The most that a loss stood above its lowest value before; inf if it was not finite."""
    values = np.where(np.isfinite(curve), curve, np.inf)
    return float(np.max(values[1:] - np.minimum.accumulate(values)[:-1]))


def verdicts(compared: Mapping[str, Any]) -> list[str]:
    """What was to be shown, and whether it was."""
    rows = {row["arm"]: row for row in compared["arms"]}
    both, neither = rows["both"], rows["neither"]
    excess = "diverged" if both["excess"] is None else f"{both['excess']:+.2%}, {LEVEL:.0%} interval {_interval(both)}"
    met = both["excess"] is not None and both["excess"] <= GOAL
    spiked = neither["diverged"] or neither["largest_rise"] > 2 * rows["both"]["largest_rise"]
    return [
        f"without clipping and warm-up the run spikes: {'yes' if spiked else 'NO'} (loss rises by up to "
        f"{neither['largest_rise']:.3g} nats; {neither['diverged']} of {len(neither['losses'])} seeds diverge)",
        f"both cures are within {GOAL:.0%} of the best lower LR's loss: {'yes, on average' if met else 'NO'} "
        f"({excess})",
    ]


def format_page(result: Mapping[str, Any]) -> str:
    """Format the result in Markdown."""
    columns = (
        "arm",
        "seeds diverged",
        "largest rise of the loss",
        "loss above the best lower LR's",
        f"{LEVEL:.0%} interval",
    )
    lines = [
        "# A provoked spike: what clipping and warm-up each do",
        "",
        f"`{result['command']}`, {result['date']}: {result['machine']}",
        "",
        result["what"],
        "",
        *markdown_table(columns, map(_cells, result["arms"])),
        "",
        *(f"- {line}" for line in result["verdicts"]),
        "",
        "![Training losses of the four arms](spike.png)",
        "",
        result["limits"],
        "",
    ]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    seeds = len(row["losses"])
    gap = ["-", "-"]
    if row["excess"] is not None:
        gap = [f"{row['excess']:+.2%}", _interval(row)]
    return [row["arm"], f"{row['diverged']} of {seeds}", f"{row['largest_rise']:.3g}", *gap]


def _interval(row: Mapping[str, Any]) -> str:
    low, high = row["interval90"]
    return f"{low:+.2%} to {high:+.2%}"


def read_runs(folder: pathlib.Path) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Final losses (inf: diverged) and training curves, by run."""
    rows = {row["name"]: row for row in listing.read_runs(folder)}
    losses = {name: row["val_loss"] if row["status"] == "done" else math.inf for name, row in rows.items()}
    lines = {name: records.read_metrics(pathlib.Path(row["folder"])) for name, row in rows.items()}
    return losses, {name: [x["train_loss"] for x in each if "train_loss" in x] for name, each in lines.items()}


def parse_arguments(argv: Sequence[str]) -> tuple[ConfigDict, Sequence[int], Any, bool]:
    """Parse arguments into (config, reported seeds, options, whether all is the default)."""
    overrides, rest = config_lib.split_overrides(list(argv))
    parser = command_line("spike", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where the runs go; again to resume")
    parser.add_argument("--quick", action="store_true", help="five reported seeds: 3 minutes on two cores (else: ten)")
    options = parser.parse_args(rest)
    base = config_lib.load(ROOT / "configs" / "spike.py", overrides)
    return base, range(5 if options.quick else 10), options, options.quick and not overrides


def plan(arguments: Sequence[str]) -> PlannedStudy:
    """The runs of this study (default: --quick), before any of them runs (for `scalelab plan --sweep`)."""
    base, seeds, *_ = parse_arguments(arguments or ["--quick"])
    return PlannedStudy(make_trials(base, seeds))


def main(argv: Sequence[str]) -> int:
    """Run the study. Exit code: 0 measured (whatever the result), 1 a sweep failed, 2 bad input, 75 stopped."""
    return guarded("spike", _main, argv)


def _main(argv: Sequence[str]) -> int:
    base, seeds, options, is_default = parse_arguments(argv)
    if options.workdir is None:
        raise BadInput("--workdir=DIR is needed: where the runs go")
    made = make_trials(base, seeds)
    print(f"{len(made)} runs of {base.train.steps} steps in one program", file=sys.stderr)
    train_trials(options.workdir, made)
    losses, curves = read_runs(options.workdir)
    compared = compare_arms(losses, curves, seeds)
    result = result_header("spike", argv) | compared | {"verdicts": verdicts(compared), "what": _what(base, compared)}
    result["limits"] = (
        "One small model on bytes, one optimizer: what it shows is the mechanism. At other sizes the rates differ, and "
        "Adam, whose update does not grow with the gradient, did not spike in this setting at any rate from 0.005 to "
        "0.08."
    )
    place = RESULTS if is_default else options.workdir
    shown = {arm: [curves[trial_name(arm, SPIKE_LR, seed)] for seed in seeds] for arm in ARMS}
    numbers = [
        {"arm": arm, "seed": i, "step": k + 1, "loss": x}
        for arm, each in shown.items()
        for i, curve in enumerate(each)
        for k, x in enumerate(curve)
    ]
    write_figure(str(place / "spike.png"), plot_arms(shown), numbers)
    return publish_result(place, "spike", result, format_page(result), options.json)


def _what(base: ConfigDict, compared: Mapping[str, Any]) -> str:
    tokens, chosen = base.train.global_batch * base.model.seq_len, ", ".join(map(str, CHOOSING_SEEDS))
    return (
        f"{base.model.n_layers} blocks of width {base.model.d_model}, {base.train.steps} steps of {tokens} bytes, "
        f"{base.optim.name}, peak LR {SPIKE_LR:g}. The best lower LR with both cures is "
        f"{compared['best_lr']:g}, chosen on seeds {chosen} among {', '.join(map(str, LRS))}. Differences are paired "
        "by seed."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
