"""Every optimizer on one model, each at its own tuned values: a ranked table with the spread of seeds, curves, explanations.

    python -m experiments.optimizers --quick --workdir=runs/optimizers
    python -m experiments.optimizers --config=configs/mine.py --trials=32 --seeds=5 --target-loss=2.4 --workdir=runs/mine

Tuning is the same for all: as many trials, at the same points of the unit cube (scrambled Halton) over peak LR, weight decay,
beta2 and warm-up around an optimizer's own values, packed into one program each. Its best then runs on seeds that tuning did
not see. How often the order flips is a bootstrap over the tuning trials. --target-loss adds the steps, tokens and seconds to
a validation loss. Run the same command again to resume. --quick: 6 trials and 3 seeds of a small model, meant to take at
most 6 minutes on two cores; without it 24 trials, and the tables go to experiments/results/ too.
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import tiny
from experiments.optimizers import race, ranking
from experiments.shared import RESULTS, command_line, facts, keep
from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.commands.progress import Board
from scalelab.commands.shared import emit, folder_path
from scalelab.defaults import DEFAULTS
from scalelab.errors import BadInput, nearest
from scalelab.plan.sweep import Planned

QUICK = {
    "model.d_model": 32, "model.n_layers": 2, "model.seq_len": 64, "train.global_batch": 16, "train.steps": 100,
    "eval.batches": 4, "eval.every_steps": 20, "checkpoint.every_steps": 100, "train.steps_per_dispatch": 20,
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Exit code 0 measured (whatever came out), 1 a sweep failed, 2 bad input, 75 stopped by a signal after saving."""
    return guarded("optimizers", _main, argv)


def _options(argv: Sequence[str]) -> tuple[Any, ConfigDict, list[str]]:
    overrides, rest = config_lib.split_overrides(list(argv))
    parser = command_line("optimizers", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where the runs go; again to resume")
    parser.add_argument("--quick", action="store_true", help="a small model, 6 trials, 3 seeds")
    parser.add_argument(
        "--config", metavar="FILE", help="the model and run to compare on (default: configs/tiny.py, small)"
    )
    parser.add_argument("--only", metavar="NAME,…", help="these optimizers (default: all)")
    parser.add_argument("--trials", type=int, metavar="N", help="tuning trials of each (default: 24; quick: 6)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="fresh seeds of each one's best (default: 3)")
    parser.add_argument("--target-loss", type=float, metavar="L", help="also say what it takes to reach this loss")
    options = parser.parse_args(rest)
    names = options.only.split(",") if options.only else list(DEFAULTS)
    for name in names:
        if name not in DEFAULTS:
            raise BadInput(f"--only: {name!r} is not an optimizer{nearest(name, DEFAULTS)}")
    options.trials = (6 if options.quick else 24) if options.trials is None else options.trials
    if options.trials < 2 or options.seeds < 2:
        raise BadInput(
            f"--trials={options.trials} --seeds={options.seeds}: two of each at least, or there is no spread"
        )
    base = config_lib.load_module(options.config).get_config() if options.config else tiny.get_config()
    sizes = (
        {} if options.config else {key: value for key, value in QUICK.items() if options.quick or key != "train.steps"}
    )
    return options, config_lib.override(base, sizes | overrides), names


def plan(arguments: Sequence[str]) -> Planned:
    """What this study would run (default: --quick), before any of it: `scalelab plan --sweep` asks.

    Which tuning trial is an optimizer's best isn't known yet: its last runs are listed with the first one's values, and cost as much.
    """
    options, base, names = _options(arguments or ["--quick"])
    values = {name: race.points(name, options.trials, base.train.seed)[0] for name in names}
    return Planned(race.tuning(base, names, options.trials) | race.finals(base, values, options.seeds))


def _run(folder: pathlib.Path, made: Mapping[str, ConfigDict], stop: Any) -> None:
    from scalelab.sweep import status
    from scalelab.sweep.run import run_sweep

    with Board(folder, {name: config.train.steps for name, config in made.items()}) as board:
        ended = run_sweep(folder, made, watch=board.update, stop=stop)
    if not stop():
        status.refuse_crashed(folder, ended)


def _main(argv: Sequence[str]) -> int:
    from scalelab.signals import stop_on_signals
    from scalelab.train.program import cache_compilations
    from scalelab.train.single import dataset

    options, base, names = _options(argv)
    if options.workdir is None:
        raise BadInput("--workdir=DIR is needed: where the runs go")
    folder = options.workdir
    made = race.tuning(base, names, options.trials)
    cache_compilations()
    dataset(next(iter(made.values())))
    print(f"tuning: {options.trials} trials of each of {len(names)} optimizers", file=sys.stderr)
    with stop_on_signals() as stop:
        _run(folder / "tuning", made, stop)
        if not stop():
            tuned = {name: race.results(folder / "tuning", f"{name}-tune") for name in names}
            best = ranking.best(tuned)
            values = {name: race.points(name, options.trials, base.train.seed)[best[name]] for name in names}
            last = race.finals(base, values, options.seeds)
            print(f"{options.seeds} fresh seeds of each one's best", file=sys.stderr)
            _run(folder / "best", last, stop)
    if stop():
        print(f"stopped; the same command goes on where it was ({folder})", file=sys.stderr)
        return 75
    ended = {name: race.results(folder / "best", f"{name}-seed") for name in names}
    result = _result(argv, options, next(iter(last.values())), tuned, ended, values)
    _write(folder, result, tuned, ended)
    if not (options.quick or options.config or options.only):
        _write(RESULTS, result, tuned, ended)
    print(page(result))
    emit(result, options.json)
    return 0


def _result(
    argv: Sequence[str], options: Any, config: ConfigDict, tuned: Any, ended: Any, values: Any
) -> dict[str, Any]:
    from scalelab.model import count
    from scalelab.optim import table

    kept = {}
    for name in tuned:
        of = race.trial(config, name, values[name], 0)
        rows = table.rows(config_lib.static(of), config_lib.hparams(of))
        kept[name] = sum(row.state_bytes for row in rows) / sum(row.parameters for row in rows)
    tokens = config.train.global_batch * config.model.seq_len
    size = count.parameters(config_lib.static(config).model)["total"]
    return facts("optimizers", argv) | {
        "what": f"{size:,} parameters, {config.train.steps} steps of {tokens:,} bytes, {config.schedule.name} LR; {options.trials} "
        f"tuning trials and {options.seeds} fresh seeds of each",
        "target_loss": options.target_loss,
        "flips": ranking.flips(tuned),
        "rows": ranking.table(tuned, ended, values, kept, options.target_loss, tokens),
    }


def _write(folder: pathlib.Path, result: dict[str, Any], tuned: Any, ended: Any) -> None:
    from scalelab.report.raceplot import race as drawn

    shown = [
        {"name": row["name"], "losses": row["losses"], "curves": [run["curve"] for run in ended[row["name"]]],
         "tuned": [run["loss"] for run in tuned[row["name"]]]}
        for row in result["rows"]
    ]  # fmt: skip
    keep(folder, "optimizers", result, page(result))
    drawn(shown).savefig(folder / "optimizers.png", dpi=110)


def page(result: Mapping[str, Any]) -> str:
    """The ranked table as Markdown."""
    flips, target = result["flips"], result["target_loss"]
    lines = [
        "# Optimizers, each at its own tuned values", "",
        f"`{result['command']}`, {result['date']}, {result['machine']}.", "",
        f"{result['what']}. Losses in nats a byte on held-out text, mean and standard deviation over seeds. Over bootstraps of the "
        f"tuning trials a pair of optimizers stands the other way round in {flips['pairs']:.0%} of draws, and the first is another "
        f"in {flips['first']:.0%}; ranks are 5 % to 95 % of draws. tokens/s are those of trials that shared the machine.", "",
        "| | optimizer | loss | ranks | peak LR | decay | beta | warm-up | state bytes | tokens/s |"
        + (f" steps, tokens, seconds to {target} |" if target is not None else ""),
        "|---" * (11 if target is not None else 10) + "|",
    ]  # fmt: skip
    for place, row in enumerate(result["rows"], 1):
        values = row["values"]
        beta = next((f"{key}={values[f'optim.{key}']:.3f}" for key in race.BETAS if f"optim.{key}" in values), "–")
        low, high = flips["ranks90"][row["name"]]
        line = (
            f"| {place} | {row['name']} | {row['loss']:.4f} ± {row['deviation']:.4f} | {low}–{high} | {values['optim.peak_lr']:.2g} "
            f"| {values['optim.weight_decay']:.2g} | {beta} | {values['schedule.warmup_share']:.0%} "
            f"| {row['state_bytes_per_parameter']:.2f} | {row['tokens_per_s'] or 0:,.0f} |"
        )
        if target is not None:
            reached = row["target"]
            line += (
                f" {reached['steps']:.0f}, {reached['tokens']:,.0f}, {reached['seconds']:.1f} |"
                if reached
                else " not reached |"
            )
        lines.append(line)
    lines += (
        ["", "Against adamw:", ""]
        if any(row["name"] == "adamw" for row in result["rows"])
        else ["", "Against the first:", ""]
    )
    return "\n".join([*lines, *(f"- **{row['name']}**: {row['explained']}" for row in result["rows"]), ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
