"""Laws of curves on real runs: fitted on three schedules, they predict the whole curves of three others.

    python -m experiments.curves --workdir=runs/curves [--json[=PATH]] [--config.group.key=value …]

A model of 0.03 M parameters, six schedules of 1,000 steps, three seeds each: 18 runs, three minutes on two cores. Both
laws of `scalelab fit` (annealing, multi_power) are fitted to constant, cosine and wsd; two_step, linear and a long
decay are held out and predicted: errors of the whole curve and of the final loss, intervals, and a power law in steps
alone beside them. Then the schedule that ends lowest by multi_power is trained over three seeds, after its loss was
written down. Writes results/curves.{json,md,png} beside this file with the default config, else into the workdir. Run
it again to resume.

    scalelab study curves --workdir=runs/curves
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.api.laws.curves import read_curves
from scalelab.cli.parser import folder_path
from scalelab.errors import BadInput
from scalelab.experiments.curves_best import BEST_LAW, compare_best, describe_best, train_best
from scalelab.experiments.shared import (
    RESULTS,
    command_line,
    markdown_table,
    publish_result,
    result_header,
    train_trials,
)
from scalelab.laws.curves.curve import Curve
from scalelab.laws.curves.fit import FittedCurves, fit_curves
from scalelab.laws.law.curve_forms import CURVE_LAWS
from scalelab.plan.sweep.sweep import PlannedStudy

ROOT = pathlib.Path(__file__).parent.parent
SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {"schedule.name": "constant"},
    "cosine": {"schedule.name": "cosine", "schedule.final_share": 0.1},
    "wsd": {"schedule.name": "wsd", "schedule.decay_steps": 200, "schedule.final_share": 0.0},
    "two_step": {"schedule.name": "multi_step"},
    "linear": {"schedule.name": "linear", "schedule.final_share": 0.0},
    "early_decay": {"schedule.name": "wsd", "schedule.decay_steps": 600, "schedule.final_share": 0.1},
}
FITTED = ("constant", "cosine", "wsd")
SEEDS = range(3)
SMALL = {
    "model.d_model": 32, "model.n_heads": 2, "model.seq_len": 64, "train.global_batch": 8, "train.steps": 1000,
    "schedule.warmup_steps": 50, "eval.every_steps": 20, "log.every_steps": 20, "checkpoint.every_steps": 1000,
}  # fmt: skip


def make_trials(base: ConfigDict) -> dict[str, ConfigDict]:
    """{name: config} of every schedule and seed; decays keep their share of the run."""
    trials = {}
    for name, values in SCHEDULES.items():
        scaled = {
            key: round(value * base.train.steps / 1000) if key.endswith("_steps") else value
            for key, value in values.items()
        }
        for seed in SEEDS:
            changed = config_lib.override(base, scaled | {"train.seed": seed})
            trials[f"{name}-seed{seed}"] = config_lib.resolve(changed)
    return trials


def split_curves(curves: Sequence[Curve]) -> tuple[list[Curve], list[Curve]]:
    """(curves to fit, curves to predict), by the schedule in a run's name."""
    fitted = [curve for curve in curves if pathlib.Path(curve.name).name.rpartition("-")[0] in FITTED]
    return fitted, [curve for curve in curves if curve not in fitted]


def score_law(fitted: FittedCurves, held_out: Sequence[Curve]) -> dict[str, Any]:
    """Parameters, left-out schedules and the scores of each held-out run."""
    predictions = {pathlib.Path(curve.name).name: fitted.predict(curve) for curve in held_out}
    return {
        "law": fitted.law.name,
        "params": fitted.best.params,
        "intervals": {name: list(ends) for name, ends in fitted.intervals().items()},
        "undetermined": fitted.undetermined(),
        "agree": fitted.best.certificate.agree,
        "starts": fitted.best.certificate.starts,
        "widening": fitted.widening,
        "correlation": fitted.errors.correlation,
        "run_sd": fitted.errors.run_sd,
        "row_sd": fitted.errors.row_sd,
        "left_out": {pathlib.Path(each.runs[0]).name.rpartition("-")[0]: each.ratio for each in fitted.left_out},
        "runs": {name: each.scores | {"final": list(each.final)} for name, each in predictions.items()},
    }


def format_page(result: Mapping[str, Any]) -> str:
    """Format the result in Markdown."""
    columns = ("law", "held-out schedule", "MAE of the curve", "power law in steps", "rows inside", "final loss",
               "interval", "measured, by seed", "inside")  # fmt: skip
    rows = [cells for law in result["laws"] for cells in _rows(law)]
    return "\n".join(
        [
            "# Laws of the loss within a run: other schedules' curves predicted",
            "",
            f"`{result['command']}`, {result['date']}: {result['machine']}",
            "",
            result["what"],
            "",
            *markdown_table(columns, rows),
            "",
            *(f"- {line}" for line in result["verdicts"]),
            "",
            *describe_best(result),
            "![Curves of the fitted and the held-out schedules](curves.png)",
            "",
        ]
    )


def _rows(law: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name in (name for name in SCHEDULES if name not in FITTED):
        runs = [scores for run, scores in law["runs"].items() if run.rpartition("-")[0] == name]
        mean = {key: float(np.mean([run[key] for run in runs])) for key in ("mae", "baseline_mae", "inside", "rows")}
        loss, low, high = runs[0]["final"]
        rows.append([
            law["law"], name, f"{mean['mae']:.4f}", f"{mean['baseline_mae']:.4f}",
            f"{mean['inside'] / mean['rows']:.0%}", f"{loss:.4f}", f"{low:.4f} to {high:.4f}",
            ", ".join(f"{run['final_measured']:.4f}" for run in runs),
            f"{sum(run['final_inside'] for run in runs)} of {len(runs)}",
        ])  # fmt: skip
    return rows


def verdicts(laws: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was to be shown of each law, and whether it was."""
    lines = []
    for law in laws:
        runs = law["runs"].values()
        better = sum(run["mae"] < run["baseline_mae"] for run in runs)
        inside = sum(run["final_inside"] for run in runs)
        errors = [float(np.mean([run[key] for run in runs])) for key in ("mae", "baseline_mae")]
        left_out = ", ".join(f"{name} {ratio:.2f}" for name, ratio in law["left_out"].items())
        lines.append(
            f"{law['law']}: nearer than a power law in steps on {better} of {len(runs)} curves (mean MAE "
            f"{errors[0]:.4f} against {errors[1]:.4f} nats); final losses inside: {inside} of "
            f"{len(runs)}. {law['agree']} of {law['starts']} starts agree; not determined: "
            f"{', '.join(law['undetermined']) or 'none'}. Fitted schedules left out in turn, missed by so many times "
            f"what intervals expect: {left_out}; intervals are {law['widening']:.2f} times as wide for it"
        )
    return lines


def parse_arguments(argv: Sequence[str]) -> tuple[ConfigDict, Any, bool]:
    """Parse arguments into (config, options, whether all is the default)."""
    overrides, rest = config_lib.split_overrides(list(argv))
    parser = command_line("curves", __doc__)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where the runs go; again to resume")
    options = parser.parse_args(rest)
    return config_lib.load(ROOT / "configs" / "tiny.py", SMALL | overrides), options, not overrides


def plan(arguments: Sequence[str]) -> PlannedStudy:
    """The runs of this study, before any of them runs (for `scalelab plan --sweep`)."""
    return PlannedStudy(make_trials(parse_arguments(arguments)[0]))


def main(argv: Sequence[str]) -> int:
    """Run the study. Exit code: 0 measured (whatever the result), 1 a sweep failed, 2 bad input, 75 stopped."""
    return guarded("curves", _main, argv)


def _main(argv: Sequence[str]) -> int:
    base, options, is_default = parse_arguments(argv)
    if options.workdir is None:
        raise BadInput("--workdir=DIR is needed: where the runs go")
    train_trials(options.workdir, make_trials(base))
    curves, _ = read_curves(sorted((options.workdir / "runs").iterdir()))
    to_fit, held_out = split_curves(curves)
    fits = {law: fit_curves(to_fit, law) for law in CURVE_LAWS}
    laws = [score_law(fitted, held_out) for fitted in fits.values()]
    best = train_best(options.workdir / "best", base, fits[BEST_LAW], SEEDS)
    others = {
        name: [float(curve.loss[-1]) for curve in curves if pathlib.Path(curve.name).name.rpartition("-")[0] == name]
        for name in SCHEDULES
    }
    result = result_header("curves", argv) | {
        "what": _what(base), "laws": laws, "verdicts": verdicts(laws), "best": best,
        "best_gaps": compare_best(best, others),
    }  # fmt: skip
    place = RESULTS if is_default else options.workdir
    _draw(place, fits, held_out)
    return publish_result(place, "curves", result, format_page(result), options.json)


def _draw(place: pathlib.Path, fits: Mapping[str, FittedCurves], held_out: Sequence[Curve]) -> None:
    """The first seed of each schedule, by the annealing law."""
    from scalelab.report.figures.scheduleplot import plot_curves
    from scalelab.report.figures.style import write_figure

    fitted = fits["annealing"]
    shown = [fitted.predict(curve) for curve in fitted.curves if curve.name.endswith("seed0")]
    predicted = [fitted.predict(curve) for curve in held_out if curve.name.endswith("seed0")]
    write_figure(place / "curves.png", plot_curves(shown, predicted, fitted.level), [])


def _what(base: ConfigDict) -> str:
    tokens = base.train.global_batch * base.model.seq_len
    return (
        f"{base.model.n_layers} blocks of width {base.model.d_model}, {base.train.steps} steps of {tokens} bytes, "
        f"{base.optim.name}, peak LR {base.optim.peak_lr:g}, {len(SEEDS)} seeds. Fitted: {', '.join(FITTED)}; the "
        "other schedules are predicted. Rows are validation losses after the warm-up, errors are in nats. One small "
        "model on bytes: how well the laws hold for larger ones is not shown here."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
