"""The IsoFLOP study: a grid of small runs, a law fitted to them, a larger run predicted, trained and scored.

    python -m experiments.isoflop --quick --workdir=runs/quickstart
    python -m experiments.isoflop --config=configs/mine.py --budgets=1e15,4e15,1.6e16 --sizes=64,96,128,192,256 \\
        --holdout=6.4e16 --workdir=runs/mine

    scalelab plan --sweep=experiments/isoflop.py     # all of it before it starts: FLOPs, memory, hours, expected intervals

Every run's shape, steps, learning rate, warm-up and beta2 follow from (size, budget) by a rule of the ladder, named in
the report. The prediction is written to disk, with its time, before the larger run starts, and never edited. Run the
same command again to resume: what is finished is not run again. The fit alone: `scalelab fit WORKDIR`.
"""

import argparse
import dataclasses
import math
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict

from experiments.shared import command_line
from scalelab import config as config_lib
from scalelab import records
from scalelab.__main__ import guarded
from scalelab.commands.progress import Bar, Board
from scalelab.commands.shared import emit, folder_path, say
from scalelab.errors import BadInput, WorkFailed
from scalelab.laws import FitError, Fitted, forms
from scalelab.laws.isoflop import fit_isoflop
from scalelab.laws.study import fit_study
from scalelab.model import count
from scalelab.plan.lawbook import Book, fixed
from scalelab.plan.sweep import Planned
from scalelab.sweep import ladder

ROOT = pathlib.Path(__file__).parent.parent
QUICK_GRID = {  # FLOPs: values of d_model around the optimum
    1e11: (16, 24, 32, 40, 48, 56),
    2e11: (16, 24, 32, 40, 48, 64),
    4e11: (24, 32, 40, 48, 56, 64, 80),
    8e11: (24, 32, 40, 48, 56, 64, 80),
}
HOLDOUT_FACTOR = 4.0  # the held-out run's compute over the largest fitted budget
LR_FACTORS = (0.5, 2.0)
EARLIER = pathlib.Path(__file__).parent / "results" / "quickstart.json"  # five studies of the quickstart's family
EARLIER_NOISE = 0.0095  # of a run's loss, relative: with it the intervals to be expected are as wide as theirs were


@dataclasses.dataclass(frozen=True)
class Study:
    """What is to be run: `{budget: sizes}` in FLOPs and d_model, the held-out budget, the family and the ladder's rule."""

    base: ConfigDict
    grid: dict[float, tuple[int, ...]]
    holdout_flops: float
    rule: ladder.Rule


def fit_runs(study: Study) -> dict[str, ConfigDict]:
    """The grid and, at the cheapest budget of the smallest and of the largest size, the learning-rate checks."""
    runs = {
        f"fit-{budget:.3g}-d{size}": ladder.rung(study.base, size, budget, study.rule)
        for budget, sizes in study.grid.items()
        for size in sizes
    }
    for size in check_sizes(study):
        budget = min(budget for budget, sizes in study.grid.items() if size in sizes)
        for factor in LR_FACTORS:
            run = ladder.rung(study.base, size, budget, study.rule, "check", factor)
            runs[f"check-{budget:.3g}-d{size}-lr-x{factor:g}"] = run
    return dict(sorted(runs.items(), key=lambda item: -item[1].train.steps * ladder.flops_per_step(item[1])))


def plan(arguments: Sequence[str]) -> Planned:
    """What this study would run with these arguments (default: --quick), before any of it: `scalelab plan --sweep` asks.

    The held-out run is the one that the law of an earlier study would choose; of another family than the quickstart's no law
    is known, and it is left out.
    """
    study, options = parse(arguments or ["--quick"])
    runs = fit_runs(study)
    if options.config:
        return Planned(runs, study.holdout_flops)
    known = earlier()
    runs["holdout"] = predicted_best(study, lambda N, D: float(known.loss(N, D)[0]))
    return Planned(runs, study.holdout_flops, known, EARLIER_NOISE)


def earlier() -> Book:
    """The law of the middle one of the earlier studies, by its prediction."""
    studies = sorted(records.read_json(EARLIER)["studies"], key=lambda each: each["predicted_loss"])
    middle = studies[len(studies) // 2]
    return Book(
        name="quickstart",
        source=f"experiments/results/quickstart.json, seed {middle['seed']}, split {middle['split']}",
        n_convention="total",
        interval="none",
        surface=forms.LAWS["chinchilla"],
        params=fixed(middle["params"]),
    )


def check_sizes(study: Study) -> tuple[int, int]:
    """The smallest and the largest width of the grid."""
    sizes = [size for row in study.grid.values() for size in row]
    return min(sizes), max(sizes)


def predicted_best(study: Study, loss: Callable[[int, int], float]) -> ConfigDict:
    """The held-out run: of all widths the ladder knows in and around the grid, the one with the least predicted loss."""
    smallest, largest = check_sizes(study)
    step = 8
    widths = range(smallest, 2 * largest + 1, step)
    runs = [ladder.rung(study.base, width, study.holdout_flops, study.rule, "holdout") for width in widths]
    return min(runs, key=lambda run: loss(*size_and_tokens(run)))


def size_and_tokens(run: ConfigDict) -> tuple[int, int]:
    """(N total, D) of a run that isn't trained yet, as its record will say."""
    N = count.parameters(config_lib.static(run).model)["total"]
    return N, run.train.steps * run.train.global_batch * run.model.seq_len


def predict_once(folder: pathlib.Path, fitted: Fitted, run: ConfigDict) -> dict[str, Any]:
    """The prediction, written before the run exists. Where one is written already, it stands, whatever the fit says now."""
    path = folder / "prediction.json"
    N, D = size_and_tokens(run)
    if not path.exists():
        at = fitted.predict(N, D)
        numbers = {"predicted_loss": at.loss, "interval90": [at.low, at.high], "predicted_at": time.time()}
        facts = {"N": N, "D": D, "C": run.train.steps * ladder.flops_per_step(run), "d_model": run.model.d_model}
        records.write_json(path, numbers | facts)
    return records.read_json(path)


def score(prediction: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """The prediction beside what was measured; `error` is predicted / measured - 1."""
    (low, high), measured = prediction["interval90"], row["val_loss"]
    return prediction | {
        "measured_loss": measured,
        "error": prediction["predicted_loss"] / measured - 1,
        "inside": low <= measured <= high,
        "width": (high - low) / prediction["predicted_loss"],
        "folder": row["folder"],
    }


def lr_checks(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Loss at half the rule's learning rate, at the rule's own and at twice it, for each size checked."""
    found = []
    for check in (row for row in rows if row["role"] == "check"):
        twin = next(r for r in rows if r["role"] == "fit" and _size_and_steps(r) == _size_and_steps(check))
        for row in (check, twin):
            loss = row["val_loss"] if row["status"] == "done" else None
            d_model, steps = _size_and_steps(row)
            facts = {"size": row["N"], "d_model": d_model, "steps": steps}
            found.append(facts | {"factor": row["optim.peak_lr"] / twin["optim.peak_lr"], "loss": loss})
    unique = {(row["size"], round(row["factor"], 6)): row for row in found}
    return [unique[key] for key in sorted(unique)]


def _size_and_steps(row: dict[str, Any]) -> tuple[int, int]:
    return row["model.d_model"], row["train.steps"]


def isoflop(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Approach 2 beside the law; {} with the reason where the finished runs don't hold two interior minima."""
    grid = [row for row in rows if row["role"] == "fit" and row["status"] == "done"]
    try:
        return fit_isoflop(*[[row[key] for row in grid] for key in ("C", "N", "val_loss")]).to_json()
    except (BadInput, FitError) as why:
        say(f"no IsoFLOP exponents: {why}")
        return {"why": str(why)}


def frontier(fitted: Fitted, low_flops: float, high_flops: float) -> dict[str, list[float]]:
    """The 90 % band of one new run at the best allocation of each budget between the two."""
    budgets = [low_flops * (high_flops / low_flops) ** (i / 12) for i in range(13)]
    bands = [fitted.decide(budget).loss for budget in budgets]
    return {"C": budgets, "low": [band.low for band in bands], "high": [band.high for band in bands]}


def conduct(study: Study, folder: pathlib.Path, command: str) -> dict[str, Any]:
    """Run (or resume) the whole study in `folder`; returns what summary.json holds. Says on standard error how far it is."""
    from scalelab.signals import stop_on_signals
    from scalelab.sweep import status
    from scalelab.sweep.run import run_sweep
    from scalelab.train.program import cache_compilations
    from scalelab.train.single import dataset, train_single

    begun = time.monotonic()
    cache_compilations()
    trials = fit_runs(study)
    data = dataset(study.base)
    say(f"{len(trials)} runs, then one of {study.holdout_flops:.3g} FLOPs; {study.rule.text()}")
    with stop_on_signals() as stop:
        with Board(folder, {name: run.train.steps for name, run in trials.items()}) as board:
            ended = run_sweep(folder, trials, watch=board.update, stop=stop)
        if stop():
            return {}
        status.refuse_crashed(folder, ended)
        fitted = fit_study(records.read_runs(folder))
        held_out = predicted_best(study, fitted.loss)
        prediction = predict_once(folder, fitted, held_out)
        low, high = prediction["interval90"]
        say(
            f"predicted for {study.holdout_flops:.3g} FLOPs: {prediction['predicted_loss']:.4f}, 90 % in {low:.4f} to {high:.4f}"
        )
        held_out = ladder.rung(study.base, prediction["d_model"], study.holdout_flops, study.rule, "holdout")
        with Bar("held-out run", held_out.train.steps) as bar:
            result = train_single(held_out, folder / "runs" / "holdout", bar.update, stop)
        if result["status"] == "stopped":
            return {}
    rows = records.read_runs(folder)
    fitted = fit_study(rows)  # the same runs, the same numbers; now the held-out run is listed among those left out
    return {
        "command": command,
        "fit": fitted.to_json(),
        "held_out": score(prediction, next(row for row in rows if row["role"] == "holdout")),
        "frontier": frontier(fitted, min(study.grid), study.holdout_flops),
        "isoflop": isoflop(rows),
        "ladder": dataclasses.asdict(study.rule) | {"text": study.rule.text()},
        "lr_checks": lr_checks(rows),
        "entropy_rate": data.entropy_rate,
        "wall_s": time.monotonic() - begun + earlier_s(folder, begun),
        "runs": [
            {key: row[key] for key in ("name", "role", "N", "D", "C", "folder", "status")} | {"loss": row["val_loss"]}
            for row in rows
        ],
    }


def earlier_s(folder: pathlib.Path, begun: float) -> float:
    """Seconds that earlier, interrupted calls spent on this study: their runs' own time, from the first line to the last."""
    started = time.time() - (time.monotonic() - begun)
    spent = 0.0
    for place in records.run_folders(folder):
        times = [line["time"] for line in records.read_events(place) + records.read_metrics(place)]
        past = [t for t in times if t < started]
        spent += max(past, default=0.0) - min(past, default=0.0)
    return spent


def parse(argv: Sequence[str]) -> tuple[Study, Any]:
    """Arguments -> (study, options). BadInput for a mistake."""
    overrides, rest = config_lib.split_overrides(list(argv))
    parser = command_line("isoflop", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="the study's folder; again to resume")
    parser.add_argument("--quick", action="store_true", help="the study of the README: minutes on two cores")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="with --quick: multiplies every budget (0.1 for a look)"
    )
    parser.add_argument("--config", metavar="FILE", help="the family of models (default: configs/quickstart.py)")
    parser.add_argument("--budgets", type=_numbers, metavar="C,C,…", help="fitted budgets in FLOPs")
    parser.add_argument("--sizes", type=_numbers, metavar="D,D,…", help="values of d_model, for every budget")
    parser.add_argument(
        "--holdout", type=_number, metavar="C", help="FLOPs of the predicted run (default: 4 x the largest)"
    )
    parser.add_argument(
        "--rule", default="small-bytes", help="the ladder's rule: how LR and steps follow from size and budget"
    )
    options = parser.parse_args(rest)
    base = config_lib.load(options.config or ROOT / "configs" / "quickstart.py", overrides)
    grid = _grid(options)
    holdout = options.holdout or HOLDOUT_FACTOR * max(grid)
    if holdout <= max(grid):
        raise BadInput(
            f"--holdout={holdout:g} is not beyond the largest budget {max(grid):g}; usual: {HOLDOUT_FACTOR * max(grid):g}"
        )
    return Study(base, grid, holdout, ladder.rule(options.rule)), options


def _grid(options: Any) -> dict[float, tuple[int, ...]]:
    if options.quick:
        if options.budgets or options.sizes:
            raise BadInput("--quick has its own budgets and sizes: use --scale, or leave --quick out")
        if not 0 < options.scale < math.inf:
            raise BadInput(f"--scale={options.scale:g} must be finite and above zero; 1 is the README's study")
        return {options.scale * budget: sizes for budget, sizes in QUICK_GRID.items()}
    if not options.budgets or not options.sizes:
        raise BadInput(
            "--budgets and --sizes are needed (or --quick): e.g. --budgets=1e15,4e15,1.6e16 --sizes=64,96,128,192"
        )
    if len(set(options.sizes)) < 3 or len(set(options.budgets)) < 3:
        raise BadInput("a law of two variables needs at least 3 budgets and 3 sizes")
    for size in options.sizes:
        if size != int(size):
            raise BadInput(f"--sizes: {size:g} is no whole number; nearest: {max(1, round(size))}")
    return {budget: tuple(int(size) for size in options.sizes) for budget in options.budgets}


def _numbers(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value < math.inf for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers above zero with commas between them")
    return values


def _number(text: str) -> float:
    first, *more = _numbers(text)
    if more:
        raise argparse.ArgumentTypeError(f"{text!r} is more than one number")
    return first


def main(argv: Sequence[str]) -> int:
    """Exit code 0 done, 1 the held-out run failed, 2 bad input, 75 stopped by a signal after saving."""
    return guarded("isoflop", _main, argv)


def _main(argv: Sequence[str]) -> int:
    study, options = parse(argv)
    folder = options.workdir
    if folder is None:
        raise BadInput("--workdir=DIR is needed: the study's folder")
    try:
        summary = conduct(study, folder, " ".join(["python -m experiments.isoflop", *argv]))
    except FitError as failure:
        raise WorkFailed(f"the law could not be fitted: {failure}") from failure
    if not summary:
        say(f"stopped; the same command goes on where it was ({folder})")
        return 75
    records.write_json(folder / "summary.json", summary)

    from scalelab.report.pages import write_report

    write_report(folder)
    held = summary["held_out"]
    say(
        f"predicted {held['predicted_loss']:.4f}, measured {held['measured_loss']:.4f}: error {held['error']:+.2%}, "
        f"{'inside' if held['inside'] else 'OUTSIDE'} the 90 % interval (width {held['width']:.1%}); "
        f"{summary['wall_s']:.0f} s; {folder / 'report.html'}"
    )
    emit(summary, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
