"""Every optimizer on one model, each at its own tuned values: ranks, losses and differences with intervals, curves.

    python -m experiments.optimizers --quick --workdir=runs/optimizers
    python -m experiments.optimizers --config=configs/mine.py --trials=32 --seeds=5 --target-loss=2.4
    --workdir=runs/mine

Tuning is equal for all. A scan of the LR places a box over peak LR, weight decay, warm-up, beta1 and beta2. Equally
many trials run at equal points of the unit cube (scrambled Halton; Sobol for powers of two), the second half of them in
a box around the best of the first. The three best points run on seeds that tuning did not see: the first --choosing
seeds select one point, the next --seeds give its loss. --target-loss adds the steps and tokens to a validation loss.
Run the command again to resume. --quick: 8 trials and 3 seeds; without it 48 and 6 (some 1,600 runs of .6 CPU seconds,
and compilation), and the tables go to experiments/results/ too.

    scalelab study optimizers --quick --workdir=runs/optimizers
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import config_path, emit_json, folder_path
from scalelab.config.optimizer_defaults import OPTIM_DEFAULTS
from scalelab.configs import tiny
from scalelab.errors import BadInput, nearest_hint
from scalelab.experiments.optimizers import limits, race, ranking, search
from scalelab.experiments.optimizers.page import format_page
from scalelab.experiments.shared import RESULTS, command_line, result_header, train_trials, write_result
from scalelab.experiments.studies import outcome
from scalelab.model import count
from scalelab.optim import table
from scalelab.plan.sweep.sweep import PlannedStudy
from scalelab.report.figures.raceplot import plot_race

SMALL_STUDY = {
    "model.d_model": 32, "model.n_layers": 2, "model.seq_len": 64, "train.global_batch": 16, "train.steps": 100,
    "eval.batches": 4, "eval.every_steps": 20, "checkpoint.every_steps": 100, "train.steps_per_dispatch": 20,
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run the race. Exit code: 0 measured (whatever the result), 1 a sweep failed, 2 bad input, 75 stopped."""
    return guarded("optimizers", _main, argv)


def _options(argv: Sequence[str]) -> tuple[Any, ConfigDict, list[str]]:
    overrides, rest = config_lib.split_overrides(list(argv))
    parser = command_line("optimizers", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where the runs go; again to resume")
    parser.add_argument("--quick", action="store_true", help="8 trials, 3 seeds")
    parser.add_argument(
        "--config",
        type=config_path,
        metavar="FILE",
        help="the model and run to compare on (default: configs/tiny.py, small)",
    )
    parser.add_argument("--only", metavar="NAME,…", help="these optimizers (default: all)")
    parser.add_argument("--trials", type=int, metavar="N", help="tuning trials of each (default: 48; quick: 8)")
    parser.add_argument("--choosing", type=int, metavar="N", help="fresh seeds that choose a point (default: 2)")
    parser.add_argument("--seeds", type=int, metavar="N", help="fresh seeds of each one's loss (default: 6; quick: 3)")
    parser.add_argument("--target-loss", type=float, metavar="L", help="also say what it takes to reach this loss")
    options = parser.parse_args(rest)
    names = options.only.split(",") if options.only else list(OPTIM_DEFAULTS)
    for name in names:
        if name not in OPTIM_DEFAULTS:
            raise BadInput(f"--only: {name!r} is not an optimizer{nearest_hint(name, OPTIM_DEFAULTS)}")
    for key, full, quick in (("trials", 48, 8), ("choosing", 2, 2), ("seeds", 6, 3)):
        if getattr(options, key) is None:
            setattr(options, key, quick if options.quick else full)
    for key, least, why in (
        ("trials", 2 * race.FINALISTS, f"each of {race.ROUNDS} rounds needs {race.FINALISTS}"),
        ("choosing", 1, "a point is chosen on seeds that its loss is not taken from"),
        ("seeds", 2, "with fewer there is no spread"),
    ):
        if getattr(options, key) < least:
            raise BadInput(f"--{key}={getattr(options, key)}: {why}; at least {least}")
    base = config_lib.load_config_module(options.config).get_config() if options.config else tiny.get_config()
    return options, config_lib.override(base, ({} if options.config else SMALL_STUDY) | overrides), names


def plan(arguments: Sequence[str]) -> PlannedStudy:
    """The runs of this study (default: --quick), before any of them runs (for `scalelab plan --sweep`).

    Its boxes and best points aren't known yet: all runs are listed around the sources' values, which cost equally much.
    """
    options, base, names = _options(arguments or ["--quick"])
    boxes = {name: search.first_box(OPTIM_DEFAULTS[name]["peak_lr"][0]) for name in names}
    drawn = {name: search.sample_box(box, options.trials, base.train.seed) for name, box in boxes.items()}
    best = {
        name: [search.config_values(name, point, base.train.steps) for point in points[: race.FINALISTS]]
        for name, points in drawn.items()
    }
    scans = race.scan_trials(base, dict.fromkeys(names, search.FIRST_OCTAVES))
    return PlannedStudy(
        scans | race.tuning_trials(base, drawn) | race.final_trials(base, best, options.choosing + options.seeds)
    )


def _main(argv: Sequence[str]) -> int:
    options, base, names = _options(argv)
    if options.workdir is None:
        raise BadInput("--workdir=DIR is needed: where the runs go")

    def train(stage: str, made: Mapping[str, ConfigDict]) -> list[dict[str, Any]]:
        print(f"{stage}: {len(made)} runs", file=sys.stderr, flush=True)
        train_trials(options.workdir / stage, made)
        return [race.read_result(options.workdir / stage / "runs" / name) for name in made]

    with outcome.count_seconds(options.workdir):
        tuned = race.tune_optimizers(base, names, options.trials, train)
        ended = race.run_finals(base, tuned, options.choosing, options.seeds, train)
    result = _result(argv, options, base, tuned, ended)
    full = not (options.quick or options.config or options.only)
    for folder in [options.workdir, *([RESULTS] if full else [])]:
        _write(folder, result, tuned, ended)
    print(format_page(result))
    emit_json(result, options.json)
    return 0


def _result(argv: Sequence[str], options: Any, base: ConfigDict, tuned: Any, ended: Any) -> dict[str, Any]:

    state_bytes = {}
    for name in tuned:
        config = race.trial_config(base, name, ended[name]["values"], 0)
        rows = table.optimizer_rows(config_lib.static(config), config_lib.hparams(config))
        state_bytes[name] = sum(row.state_bytes for row in rows) / sum(row.parameters for row in rows)
    tokens = base.train.global_batch * base.model.seq_len
    size = count.count_parameters(config_lib.static(config).model)["total"]
    table_rows = ranking.ranking_rows(tuned, ended, state_bytes, options.target_loss, tokens)
    return (
        result_header("optimizers", argv)
        | outcome.read_seconds(options.workdir)
        | {
            "what": f"{size:,} parameters, {base.train.steps} steps of {tokens:,} bytes, {base.schedule.name} LR; "
            f"{options.trials} tuning trials of each after the scan, "
            f"{options.choosing} + {options.seeds} fresh seeds of three points",
            "target_loss": options.target_loss,
            "choosing": options.choosing,
            "seeds": options.seeds,
            "reference": next((row["name"] for row in table_rows if row["explained"] == "the reference"), ""),
            "sides": sum(len(row["widened"]) for row in table_rows),
            "rescanned": sum(len(row["scan"]) > len(search.FIRST_OCTAVES) for row in table_rows),
            "rise": ranking.loss_rise(table_rows),
            "limits": limits.describe_limits(base, list(tuned)),
            "rows": table_rows,
        }
    )


def _write(folder: pathlib.Path, result: dict[str, Any], tuned: Any, ended: Any) -> None:
    shown = [
        {
            "name": row["name"],
            "losses": row["losses"],
            "curves": [run["curve"] for run in ended[row["name"]]["runs"]],
            "tuned": [run["loss"] for run in tuned[row["name"]]["runs"]],
            "interval": row["interval"],
        }
        for row in result["rows"]
    ]
    write_result(folder, "optimizers", result, format_page(result))
    plot_race(shown).savefig(folder / "optimizers.png", dpi=110)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
