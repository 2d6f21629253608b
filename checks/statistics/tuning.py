"""Check `scalelab tune` where the best is known: a synthetic response surface, and a dense grid of real runs.

    python -m checks.statistics.tuning [--workdir=runs/tuning] [--quick] [--json[=PATH]]

Synthetic: 400 tunings of learning rate, decay and beta2 each, with noise, divergence above four times the best LR, and
a range of LR that ends below the best; on a quadratic surface, and on two that are steeper above the best. Real: AdamW
on configs/tiny.py for 100 steps, 240 grid points against a tuning of 60 runs; both on fresh seeds. Writes
`checks/results/tuning.json` and `.md`; about 25 minutes on two cores; run it again to resume. --quick: 40 synthetic
tunings of each surface and no grid, into the workdir.

    python -m checks.statistics.tuning --quick
"""

import math
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from checks.shared import RESULTS, command_line, result_header
from scalelab import __main__ as scalelab_command
from scalelab import config as config_lib
from scalelab.__main__ import guarded
from scalelab.cli.parser import folder_path
from scalelab.experiments.shared import markdown_table, publish_result
from scalelab.record import listing, records
from scalelab.sweep import grid
from scalelab.sweep.tune.optimum import locate_best
from scalelab.sweep.tune.search import search
from scalelab.sweep.tune.space import Dimension, Point
from scalelab.sweep.tune.verdict import compare_losses

STUDIES, QUICK_STUDIES = 400, 40
NOISE = 0.003  # of a loss, relative
ROUNDS = [12, 12, 12]
SPACE = (
    Dimension("optim.peak_lr", 1e-4, 1e-2, "log"),
    Dimension("optim.weight_decay", 1e-3, 1.0, "log"),
    Dimension("optim.beta2", 0.9, 0.999, "one_minus"),
)
BEST = (2e-2, 0.1, 0.98)  # the LR's range ends below it
DIVERGES = math.log(4)  # above the best LR, in logs
STEEPER: dict[str, Callable[[float], float]] = {  # what is added to the log loss above the best LR
    "quadratic": lambda a: 0.0,
    "with a cubic part": lambda a: 0.002 * a**3,
    "1.3 times as steep above": lambda a: 0.006 * a**2,
}
GRID_OVERRIDES = {"train.steps": 100, "eval.batches": 16}
SEEDS = 5  # fresh ones
GRID = (
    grid.sweep("optim.peak_lr", np.geomspace(1e-3, 1e-1, 12).tolist()),
    grid.sweep("optim.weight_decay", [0.01, 0.03, 0.1, 0.3, 1.0]),
    grid.sweep("optim.beta2", [0.9, 0.95, 0.98, 0.995]),
)
SWEEP_FILE = '''"""Points of configs/tiny.py."""

from scalelab.configs import tiny


def get_config():
    return tiny.get_config()


def sweep(h):
    return {points!r}
'''


def loss_at(point: Point, above: Callable[[float], float]) -> float:
    """The surface: 3 nats at the best point; inf where it diverges."""
    a, b = math.log(point[0] / BEST[0]), math.log(point[1] / BEST[1])
    c = math.log((1 - point[2]) / (1 - BEST[2]))
    if a > DIVERGES:
        return math.inf
    rise = 0.02 * a * a + 0.006 * b * b + 0.01 * c * c + 0.004 * a * b
    return 3 * math.exp(rise + (above(a) if a > 0 else 0.0))


def simulate_tunings(above: Callable[[float], float], studies: int) -> dict[str, Any]:
    """Shares of intervals that hold the best values, and what the values found cost."""
    held, costs, statuses = [], [], []
    for i in range(studies):
        rng = np.random.default_rng(i)
        found = search(["all"], SPACE, ROUNDS, i, lambda _, points, rng=rng: _losses(points, above, rng))
        assert found is not None
        located = locate_best(SPACE, found["all"].tried)
        statuses.append(located.status)
        held.append([low <= best <= high for (low, high), best in zip(located.intervals, BEST, strict=True)])
        costs.append(loss_at(located.point, above) / 3 - 1)
    shares = dict(zip((each.key for each in SPACE), np.mean(held, axis=0).tolist(), strict=True))
    located_share = statuses.count("used") / studies
    return {"held": shares, "located": located_share, "cost": float(np.mean(costs)), "cost90": _upper(costs)}


def _upper(costs: Sequence[float]) -> float:
    return float(np.quantile(costs, 0.9))


def _losses(points: Mapping[str, Sequence[Point]], above: Callable, rng: np.random.Generator) -> dict[str, list[float]]:
    return {
        arm: [loss_at(point, above) * math.exp(NOISE * rng.standard_normal()) for point in each]
        for arm, each in points.items()
    }


def run_grid(folder: pathlib.Path) -> int:
    """Train the dense grid, the tuning, and the grid's best on fresh seeds; the first exit code that is not 0."""
    given = [f"--config.{key}={value}" for key, value in GRID_OVERRIDES.items()]
    tiny = config_lib.find_config_file("tiny")
    options = [f"--config={tiny}", f"--workdir={folder / 'tune'}", "--trials=60", f"--seeds={SEEDS}"]
    return (
        _sweep(folder, "grid", grid.product(GRID), given)
        or scalelab_command.main(["tune", *options, *given])
        or _sweep(folder, "fresh", [best_of_grid(folder) | {"train.seed": 1 + i} for i in range(SEEDS)], given)
    )


def _sweep(folder: pathlib.Path, name: str, points: Sequence[Mapping[str, Any]], given: Sequence[str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text(SWEEP_FILE.format(points=list(points)))
    return scalelab_command.main(["sweep", f"--config={file}", f"--workdir={folder / name}", *given])


def best_of_grid(folder: pathlib.Path) -> dict[str, Any]:
    """The searched values of the grid's best run."""
    best = min(_ended(folder / "grid"), key=lambda row: row["val_loss"])
    values = config_lib.leaves(records.read_config(folder / "grid" / "runs" / best["name"]))
    return {each.key: values[each.key] for each in SPACE}


def _ended(folder: pathlib.Path) -> list[dict[str, Any]]:
    return [row for row in listing.read_runs(folder) if row.get("val_loss") is not None]


def read_grid(folder: pathlib.Path) -> dict[str, Any]:
    """The grid's best beside what the tuning found: on the seed that both searched on, and on fresh seeds."""
    rows, fresh = _ended(folder / "grid"), sorted(_ended(folder / "fresh"), key=lambda row: row["name"])
    summary = records.read_json(folder / "tune" / "summary.json")
    found = summary["arms"][summary["winner"]["arm"]]["candidates"][0]
    least = min(row["val_loss"] for row in rows)
    of_grid, of_tune = [row["val_loss"] for row in fresh], summary["fresh"][summary["winner"]["arm"]]
    gain = compare_losses(of_grid, of_tune)
    means = [float(np.mean(losses)) for losses in (of_grid, of_tune)]
    return {
        "grid": {"trials": len(rows), "loss": least, "values": best_of_grid(folder), "fresh": means[0]},
        "tune": {"trials": summary["spent"]["trials"], "loss": found["loss"], "values": found["values"],
                 "fresh": means[1]},
        "above": found["loss"] / least - 1,
        "above_fresh": [-each / means[0] for each in (gain.mean, *reversed(gain.interval or (math.nan, math.nan)))],
        "verdict": summary["verdict"],
    }  # fmt: skip


def make_page(result: Mapping[str, Any]) -> str:
    """The page of the result."""
    keys = [each.key for each in SPACE]
    table = [
        [
            name,
            *(f"{each['held'][key]:.1%}" for key in keys),
            f"{each['located']:.1%}",
            f"{each['cost']:.3%}",
            f"{each['cost90']:.3%}",
        ]
        for name, each in result["synthetic"].items()
    ]
    lines = [
        "# Tuning where the best is known",
        "",
        f"`{result['command']}`, {result['date']}, {result['machine']}",
        "",
        f"## Synthetic: {result['studies']} tunings of each surface",
        "",
        f"Three rounds of 12 points, a noise of {NOISE:.1%}; runs diverge above four times the best learning rate, and "
        "its range ends at half the best. The share of 90 % intervals that hold the best value of each key, of tunings "
        "that located it, and what the values found cost in loss.",
        "",
        *markdown_table(("surface", *keys, "located", "mean cost", "90 % cost less than"), table),
        "",
    ]
    if real := result["real"]:
        rows = [
            [
                name,
                str(real[name]["trials"]),
                f"{real[name]['loss']:.4f}",
                f"{real[name]['fresh']:.4f}",
                ", ".join(f"{key.split('.')[1]} {value:.4g}" for key, value in real[name]["values"].items()),
            ]
            for name in ("grid", "tune")
        ]
        lines += [
            "## Real: AdamW on configs/tiny.py",
            "",
            *markdown_table(("", "runs", "best loss", f"mean of {SEEDS} fresh seeds", "at"), rows),
            "",
            f"On the seed that both searched on, the tuning's best loss is {real['above']:+.2%} off the grid's, where "
            "the least of 240 is lucky. On fresh seeds it is {:+.2%} ({:+.2%} to {:+.2%}, 90 %, in pairs).".format(
                *real["above_fresh"]
            ),
            f"The tuning's own verdict, against the config as it is: {real['verdict']}.",
            "",
            "The tuning may leave the grid's range, and clip. One model, one horizon, one processor.",
            "",
        ]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run it; exit codes as for commands."""
    return guarded("tuning", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("statistics.tuning", __doc__)
    parser.add_argument("--workdir", type=folder_path, default=pathlib.Path("runs/tuning"), metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="40 synthetic tunings of each surface, no grid")
    options = parser.parse_args(list(argv))
    studies = QUICK_STUDIES if options.quick else STUDIES
    if not options.quick and (code := run_grid(options.workdir)):
        return code
    real = None if options.quick else read_grid(options.workdir)
    synthetic = {name: simulate_tunings(above, studies) for name, above in STEEPER.items()}
    result = result_header("statistics.tuning", argv) | {"studies": studies, "synthetic": synthetic, "real": real}
    place = options.workdir if options.quick else RESULTS
    return publish_result(place, "tuning", result, make_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
