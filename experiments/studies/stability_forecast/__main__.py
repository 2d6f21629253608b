"""Forecast of instability: attention logits of small proxies, extrapolated over width, say what a wider run will do.

    python -m experiments.studies.stability_forecast [--workdir=DIR] [--quick] [--json[=PATH]]

One block of four widths, trained at five learning rates up to far too high ones: as it is, with z-loss (1e-4), and with
QK-norm. Measured: the largest attention logit, mean logZ of the output, and LR sensitivity (mean over the rates of the
loss, capped at its start, less the best). The growth of the attention logits of the plain model, a quadratic in log-log
as in the paper, is extrapolated to twice the largest width, with intervals; it is written to parts/prediction.json
before the wider runs begin, and scored by them. Five CPU minutes; --quick: three widths, two seeds. Expected: logits
grow with width and rate, QK-norm holds them and lowers the sensitivity. Source: Wortsman et al. (2023), "Small-scale
proxies for large-scale transformer training instabilities".

    scalelab study stability_forecast --quick --workdir=runs/stability_forecast
"""

import math
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.cli.parser import print_status
from scalelab.experiments.shared import markdown_table, train_trials
from scalelab.experiments.studies import outcome
from scalelab.experiments.studies.stability_forecast import figure, ladder
from scalelab.record import records

WIDTHS, QUICK_WIDTHS = (16, 32, 64, 96), (16, 32, 64)
SEEDS, QUICK_SEEDS = (1, 2, 3), (1, 2)  # settings were explored with seed 0 at two widths
STEPS = 100
START = math.log(256)  # nats: the loss at the start, where logits are near zero
SHOWN_LR = 1.6e-2  # where growth with width is compared: the middle of the rates
PAPER = "Wortsman et al. 2023"


def measure(folder: pathlib.Path, quick: bool) -> dict[str, Any]:
    """The result of the study: the ladder, its prediction, and the wider runs that score it."""
    widths, seeds = (QUICK_WIDTHS, QUICK_SEEDS) if quick else (WIDTHS, SEEDS)
    rows: list[dict[str, Any]] = []
    for width in widths:
        for arms in ((ladder.PLAIN, ladder.Z_LOSS), (ladder.QK_NORM,)):  # each pair of arms is one program
            rows += _train(folder / f"d{width}-{arms[-1]}", width, seeds, arms)
    wider, settings = 2 * widths[-1], {"widths": widths, "seeds": seeds, "steps": STEPS, "lrs": ladder.LRS}
    predict = lambda: {"time": time.time(), "rates": ladder.predict(rows, wider)}  # noqa: E731
    check = folder / f"d{wider}-{ladder.PLAIN}"
    prediction = outcome.measure_once(folder, "prediction", settings, predict, before=[check])
    held_out = _train(check, wider, seeds, (ladder.PLAIN,))
    begun = records.read_events(check / "runs" / _any_run(seeds))[0]["time"]
    scored = ladder.score(prediction["rates"], held_out)
    sensitivity = list_sensitivities(rows, widths, seeds)
    return {
        "widths": [*widths], "wider": wider, "seeds": [*seeds], "steps": STEPS, "rows": rows, "held_out": held_out,
        "prediction": prediction, "lead_s": begun - prediction["time"], "scored": scored, "sensitivity": sensitivity,
        "checks": list_checks(rows, scored, sensitivity), "finding": describe_finding(scored, sensitivity, rows),
        "limits": f"one block, heads of {ladder.D_HEAD}, {STEPS} steps, and rates far above the best: at these sizes "
        "runs get worse where logits grow, but do not diverge. Sensitivity falls with width in all arms because the "
        "lowest rates train the narrow models too little, so only differences between arms count. Mean logZ stays near "
        "its start, so z-loss has nothing to hold here. Runs of one rate share a fit: intervals hit or miss together, "
        "so that five rates are five trials, not fifteen. One doubling of the width is extrapolated; the paper goes "
        "farther.",
    }  # fmt: skip


def _train(folder: pathlib.Path, width: int, seeds: Sequence[int], arms: Sequence[str]) -> list[dict[str, Any]]:
    trials = ladder.make_trials(width, STEPS, seeds, arms)
    print_status(f"width {width}, {' and '.join(arms)}: {len(trials)} runs of {STEPS} steps in one program")
    train_trials(folder, trials)
    return ladder.read_rows(folder, width, seeds, arms)


def _any_run(seeds: Sequence[int]) -> str:
    return ladder.run_name(ladder.PLAIN, ladder.LRS[0], seeds[0])


def list_sensitivities(
    rows: Sequence[Mapping[str, Any]], widths: Sequence[int], seeds: Sequence[int]
) -> dict[str, list[tuple[float, float]]]:
    """{arm: (LR sensitivity, standard error) at each width}."""
    losses = {(row["arm"], row["width"], row["seed"], row["lr"]): row["loss"] for row in rows}
    return {
        arm: [
            ladder.lr_sensitivity([[losses[arm, width, seed, lr] for lr in ladder.LRS] for seed in seeds], START)
            for width in widths
        ]
        for arm in ladder.ARMS
    }


def list_checks(
    rows: Sequence[Mapping[str, Any]], scored: Sequence[Mapping[str, Any]], sensitivity: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The forecast's coverage, and what QK-norm does to growth and sensitivity."""
    share = sum(one["inside"] for one in scored) / sum(len(one["measured"]) for one in scored)
    gap = sensitivity[ladder.PLAIN][-1][0] - sensitivity[ladder.QK_NORM][-1][0]
    return [
        # Five rates hit or miss: fewer than three hits have a probability of 1 % if each has 90 %.
        outcome.compare_with(ladder.LEVEL, "level of the intervals", "wider runs inside their interval, share", share,
                             0.6, 1),
        outcome.compare_with(0, f"{PAPER}: above 0", "LR sensitivity at the largest width: neither less QK-norm", gap,
                             0, 5, "nats"),
        outcome.compare_with(1, f"{PAPER}: logits grow with size", f"exponent over width at rate {SHOWN_LR:g}, neither",
                             ladder.growth_exponent(rows, ladder.PLAIN, SHOWN_LR), 0.5, 3),
        outcome.compare_with(0, "gains alone bound them", "with QK-norm",
                             ladder.growth_exponent(rows, ladder.QK_NORM, SHOWN_LR), -0.5, 0.5),
    ]  # fmt: skip


def describe_finding(
    scored: Sequence[Mapping[str, Any]], sensitivity: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> str:
    """One sentence: the forecast beside what was measured, and what QK-norm and z-loss change."""
    inside, runs = sum(one["inside"] for one in scored), sum(len(one["measured"]) for one in scored)
    plain, norm, z_loss = (
        f"{sensitivity[arm][-1][0]:.3f} ({sensitivity[arm][-1][1]:.3f})"
        for arm in (ladder.PLAIN, ladder.QK_NORM, ladder.Z_LOSS)
    )
    widths = [row["width"] for row in rows]
    return (
        f"Attention logits of widths {min(widths)} to {max(widths)} forecast those of width {scored[0]['width']}: "
        f"{inside} of {runs} runs lie in their 90 % interval; LR sensitivity at width {max(widths)} is {plain} nats, "
        f"{norm} with QK-norm and {z_loss} with z-loss (standard errors)."
    )


def describe(result: Mapping[str, Any]) -> list[str]:
    """The forecast, and the table of all arms and widths."""
    forecast = [
        [
            f"{one['lr']:g}",
            f"{one['value']:.4g}",
            f"{one['low']:.4g} to {one['high']:.4g}",
            f"{one['line']['value']:.4g} ({one['line']['low']:.4g} to {one['line']['high']:.4g})",
            ", ".join(f"{value:.4g}" for value in one["measured"]),
            f"{one['inside']} and {one['inside_line']}",
        ]
        for one in result["scored"]
    ]
    columns = ("rate", "forecast", "90 % interval", "by a line", "measured, by seed", "inside, by quadratic and line")
    return [
        f"Largest attention logit at width {result['wider']}, forecast {result['lead_s']:.0f} s before its runs began:",
        "", *markdown_table(columns, forecast), "",
        f"Means over {len(result['seeds'])} seeds. Attention: the largest logit of a run; logZ: its mean over tokens, "
        f"where it is farthest from its start ({START:.2f}).", "",
        *markdown_table(("arm", "width", "LR sensitivity (standard error)",
                         *(f"loss, attention, logZ at {lr:g}" for lr in ladder.LRS)), _rows(result)),
    ]  # fmt: skip


def _rows(result: Mapping[str, Any]) -> list[list[str]]:
    lines = []
    for arm, values in result["sensitivity"].items():
        for width, (mean, error) in zip(result["widths"], values, strict=True):
            cells = [_cell(result["rows"], arm, width, lr) for lr in ladder.LRS]
            lines.append([arm, str(width), f"{mean:.3f} ({error:.3f})", *cells])
    return lines


def _cell(rows: Sequence[Mapping[str, Any]], arm: str, width: int, lr: float) -> str:
    chosen = [row for row in rows if (row["arm"], row["width"], row["lr"]) == (arm, width, lr)]
    losses = [START if row["loss"] is None else row["loss"] for row in chosen]
    attention = math.exp(sum(math.log(row["attention"]) for row in chosen) / len(chosen))
    return f"{sum(losses) / len(losses):.3f}, {attention:.3g}, {sum(row['log_z'] for row in chosen) / len(chosen):.1f}"


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return outcome.run_study("stability_forecast", __doc__, argv, measure, figure.plot_forecast, describe)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
