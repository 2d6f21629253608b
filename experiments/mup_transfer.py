"""Test whether the best learning rate transfers over widths: a packed sweep over LR x width x seed, mup and standard.

    python -m experiments.mup_transfer --quick --workdir=runs/mup_transfer [--config=FILE] [--config.group.key=value …]

Every (parametrization, width) is one program whose trials differ in learning rate and seed. At each width the best LR
is the vertex of a parabola through the lowest mean losses over seeds, over log2 LR. Under mup it should not move (at
most 0.75 octaves over 8 times the width); under standard it should fall with the width (by more than 2 octaves), so
standard's grid is lower at larger widths, with its minimum inside. Writes results/mup_transfer.{json,md,png} beside
this file with --quick and the default config, else into the workdir. Run it again to resume.

    scalelab study mup_transfer --quick --workdir=runs/mup_transfer
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import config_path, folder_path
from scalelab.errors import BadInput
from scalelab.experiments.shared import RESULTS, command_line, publish_result, result_header, train_trials
from scalelab.plan.sweep.sweep import PlannedStudy
from scalelab.record import listing, records
from scalelab.report.figures.lrplots import plot_lr_transfer, write_lr_figure
from scalelab.sweep.answer.best_lr import find_best_lr
from scalelab.sweep.scaling.resize import resize_config

ROOT = pathlib.Path(__file__).parent.parent
GRID_FALL_OCTAVES = {"mup": 0.0, "standard": 0.8}  # octaves by which the grid is lower per doubling of the width
MOST_OCTAVES = {"mup": 0.75}  # octaves over 8 times the width: the goal
LEAST_OCTAVES = {"standard": 2.0}
SEEDS = (0, 1, 2)
WIDTHS = (32, 64, 128, 256)
GRID_ENDS = (-10.0, -6.0)  # log2 of the LRs at the smallest width, first and last


def transfer_trials(base: ConfigDict, widths: Sequence[int], step: float) -> dict[str, ConfigDict]:
    """{name: config}, the largest width first, because it takes longest."""
    trials = {}
    for width in sorted(widths, reverse=True):
        for parametrization in GRID_FALL_OCTAVES:
            config = resize_config(_under(base, parametrization), width)
            for log2_lr in log2_lr_grid(parametrization, width / min(widths), step):
                for seed in SEEDS:
                    trial = config.copy_and_resolve_references()
                    trial.optim.peak_lr, trial.train.seed = float(2.0**log2_lr), seed
                    trials[run_name(parametrization, width, log2_lr, seed)] = config_lib.resolve(trial)
    return trials


def _under(base: ConfigDict, parametrization: str) -> ConfigDict:
    config = base.copy_and_resolve_references()
    config.parametrization.name = parametrization
    return config


def log2_lr_grid(parametrization: str, ratio: float, step: float) -> np.ndarray:
    """log2 of the LRs tried at a width that is `ratio` times the smallest."""
    lowest, highest = np.array(GRID_ENDS) - GRID_FALL_OCTAVES[parametrization] * np.log2(ratio)
    return np.arange(lowest, highest + step / 2, step)


def run_name(parametrization: str, width: int, log2_lr: float, seed: int) -> str:
    """The name of a run's folder."""
    return f"{parametrization}-d{width}-lr2^{log2_lr:+.2f}-seed{seed}"


def read_transfer_rows(folder: pathlib.Path, widths: Sequence[int], step: float) -> list[dict[str, Any]]:
    """One row per (parametrization, width): the losses [seeds][LRs] and the best LR."""
    losses = {row["name"]: row["val_loss"] if row["status"] == "done" else None for row in listing.read_runs(folder)}
    rows = []
    for parametrization in GRID_FALL_OCTAVES:
        for width in widths:
            lrs = log2_lr_grid(parametrization, width / min(widths), step)
            curve = [[losses[run_name(parametrization, width, lr, seed)] for lr in lrs] for seed in SEEDS]
            best = find_best_lr(lrs, np.array(curve, float))  # None is NaN: diverged
            facts = {"parametrization": parametrization, "d_model": width, "log2_lr": best.log2_lr}
            facts |= {
                "interval90": best.interval and [*best.interval],
                "no_interval": best.refusal,
                "loss": best.loss,
                "interior": best.interior,
            }
            rows.append(facts | {"log2_lrs": lrs.tolist(), "losses": curve})
    return rows


def lr_octaves_moved(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """{parametrization: octaves between the lowest and the highest best LR over widths}."""
    moved = {key: [row["log2_lr"] for row in rows if row["parametrization"] == key] for key in GRID_FALL_OCTAVES}
    return {key: max(values) - min(values) for key, values in moved.items()}


def span_s(folder: pathlib.Path) -> float:
    """Seconds from the first line that any run wrote to the last."""
    times = [line["time"] for place in listing.run_folders(folder) for line in records.read_events(place)]
    return max(times) - min(times)


def format_page(result: dict[str, Any]) -> str:
    """Format the table as Markdown, with its meaning."""
    lines = [
        "# The best learning rate over widths, under mup and under standard",
        "",
        f"`{result['command']}`, {result['date']}, {result['machine']}; {result['wall_s']:.0f} s.",
        "",
        f"{result['what']}",
        "",
        "| parametrization | d_model | best log2 LR | 90 % interval over seeds | loss there | inside the grid |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['parametrization']} | {row['d_model']} | {row['log2_lr']:.2f} | {_interval_cell(row)} | "
            f"{row['loss']:.4f} | {'yes' if row['interior'] else 'NO'} |"
        )
    lines += ["", *result["verdicts"], "", "![Loss over learning rate by width](mup_transfer.png)", ""]
    return "\n".join(lines)


def _interval_cell(row: dict[str, Any]) -> str:
    return "{:.2f} to {:.2f}".format(*row["interval90"]) if row["interval90"] else f"none: {row['no_interval']}"


def describe_transfer(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One line per parametrization: how far its best LR moved, beside the goal."""
    lines = []
    for key, octaves in lr_octaves_moved(rows).items():
        rows_of = [row for row in rows if row["parametrization"] == key]
        goal = f"at most {MOST_OCTAVES[key]:g}" if key in MOST_OCTAVES else f"more than {LEAST_OCTAVES[key]:g}"
        met = octaves <= MOST_OCTAVES[key] if key in MOST_OCTAVES else octaves > LEAST_OCTAVES[key]
        edge = "" if all(row["interior"] for row in rows_of) else "; a minimum lies at the edge of its grid"
        ratio = max(row["d_model"] for row in rows_of) / min(row["d_model"] for row in rows_of)
        lines.append(
            f"{key}: over {ratio:g} times the width the best LR moves by {octaves:.2f} octaves "
            f"({goal} expected: {'met' if met else 'NOT met'}{edge})."
        )
    return lines


def parse_arguments(argv: Sequence[str]) -> tuple[ConfigDict, Sequence[int], float, Any, dict[str, str]]:
    """Parse arguments into (family, widths, octaves between LRs, options, overrides). BadInput for a mistake."""
    overrides, rest = config_lib.split_overrides(list(argv))
    parser = command_line("mup_transfer", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where the runs go; again to resume")
    parser.add_argument("--quick", action="store_true", help="LRs an octave apart: 4 minutes on two cores (else: half)")
    parser.add_argument(
        "--config", type=config_path, metavar="FILE", help="the family of models (default: configs/mup_transfer.py)"
    )
    parser.add_argument("--widths", metavar="D,D,…", help=f"values of d_model (default: {','.join(map(str, WIDTHS))})")
    options = parser.parse_args(rest)
    widths = _widths(options.widths) if options.widths else WIDTHS
    base = config_lib.load(options.config or ROOT / "configs" / "mup_transfer.py", overrides)
    return base, widths, 1.0 if options.quick else 0.5, options, overrides


def _widths(text: str) -> list[int]:
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise BadInput(
            f"--widths={text} is not whole numbers with commas between them, e.g. {','.join(map(str, WIDTHS))}"
        )
    return sorted(map(int, text.split(",")))


def plan(arguments: Sequence[str]) -> PlannedStudy:
    """The runs of this study (default: --quick), before any of them runs (for `scalelab plan --sweep`)."""
    base, widths, step, *_ = parse_arguments(arguments or ["--quick"])
    return PlannedStudy(transfer_trials(base, widths, step))


def main(argv: Sequence[str]) -> int:
    """Run the study. Exit code: 0 measured (whatever the result), 1 a sweep failed, 2 bad input, 75 stopped."""
    return guarded("mup_transfer", _main, argv)


def _main(argv: Sequence[str]) -> int:
    base, widths, step, options, overrides = parse_arguments(argv)
    if options.workdir is None:
        raise BadInput("--workdir=DIR is needed: where the runs go")
    folder, made = options.workdir, transfer_trials(base, widths, step)
    print(f"{len(made)} trials: d_model {', '.join(map(str, widths))}, {len(SEEDS)} seeds", file=sys.stderr)
    train_trials(folder, made)
    rows = read_transfer_rows(folder, widths, step)
    result = result_header("mup_transfer", argv) | {
        "what": f"{base.model.n_layers} block(s), {base.train.steps} steps of "
        f"{base.train.global_batch} x {base.model.seq_len} bytes, {base.schedule.name} LR, {base.optim.name}, "
        f"mup's base width {base.parametrization.base_width}, seeds {', '.join(map(str, SEEDS))}; "
        "validation loss in nats/byte.",
        "wall_s": span_s(folder),
        "config_identity": config_lib.identity(base),
        "rows": rows,
        "moves_octaves": lr_octaves_moved(rows),
        "verdicts": describe_transfer(rows),
    }
    place = RESULTS if options.quick and not (options.config or overrides or options.widths) else folder
    write_lr_figure(str(place / "mup_transfer.png"), plot_lr_transfer(rows), rows)
    return publish_result(place, "mup_transfer", result, format_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
