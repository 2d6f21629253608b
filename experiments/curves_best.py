"""The schedule that a fitted law of curves wants, trained: its loss is predicted before, and compared with the others.

Part of the study `curves`. The file of the schedule is written once, with its prediction, before a run of it begins.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.api.laws.curves import read_curves
from scalelab.experiments.shared import markdown_table, train_trials
from scalelab.laws.curves.best_schedule import find_best_schedule, write_schedule
from scalelab.laws.curves.fit import FittedCurves
from scalelab.numbers.gaps import judge_pair
from scalelab.numbers.shared_noise import estimate_noise
from scalelab.study import write_once
from scalelab.untrusted.schemas import TEXT
from scalelab.user_code import apply_permissions

BEST_LAW = "multi_power"
LEVEL = 0.9


def train_best(folder: pathlib.Path, base: ConfigDict, fitted: FittedCurves, seeds: Sequence[int]) -> dict[str, Any]:
    """Predict the law's best schedule, train it over seeds in `folder`, and measure: {final, gains, measured}."""
    name = f"best_{fitted.law.name}"
    folder.mkdir(exist_ok=True)
    runs = [folder / "runs" / f"{name}-seed{seed}" for seed in seeds]
    fact: dict[str, Any] = write_once(folder / "prediction.json", lambda: _predict(fitted), {"file": TEXT}, before=runs)
    (folder / f"{name}.py").write_text(fact["file"])
    apply_permissions({"names": [f"{name}:lr"], "folders": [str(folder.absolute())]})
    trials = {
        run.name: config_lib.resolve(config_lib.override(base, {"schedule.name": f"{name}:lr", "train.seed": seed}))
        for run, seed in zip(runs, seeds, strict=True)
    }
    train_trials(folder, trials)
    curves, _ = read_curves([folder])
    return {key: fact[key] for key in ("final", "gains")} | {"measured": [float(curve.loss[-1]) for curve in curves]}


def _predict(fitted: FittedCurves) -> dict[str, Any]:
    best = find_best_schedule(fitted)
    gains = {pathlib.Path(name).name.rpartition("-")[0]: list(gain) for name, gain in best.gains.items()}
    text = write_schedule(best, f"The best schedule by {fitted.law.name}.", "Written by the study of laws of curves.")
    return {"file": text, "final": list(best.prediction.final), "gains": gains}


def compare_best(best: Mapping[str, Any], others: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """{schedule: [nats by which it ended higher, low, high]}: 90 % intervals, by seed, of the noise of all schedules.

    `others`: the final losses of each, in the order of the seeds. {} for a single seed.
    """
    noise = estimate_noise(np.array([best["measured"], *others.values()]))
    if noise is None:
        return {}
    pairs = {name: judge_pair(noise, place, 0, LEVEL) for place, name in enumerate(others, 1)}
    return {name: [pair.gap, pair.low, pair.high] for name, pair in pairs.items()}


def describe_best(result: Mapping[str, Any]) -> list[str]:
    """Lines of the page: what the law promised, and what the runs gave."""
    best, gaps = result["best"], result["best_gaps"]
    loss, low, high = best["final"]
    measured = ", ".join(f"{value:.4f}" for value in best["measured"])
    inside = sum(low <= value <= high for value in best["measured"])
    lines = [
        f"The schedule that ends lowest by {BEST_LAW} (Luo et al. 2025, sec. 5), trained after its loss was written "
        f"down: predicted {loss:.4f} ({low:.4f} to {high:.4f}), measured {measured}, {inside} of "
        f"{len(best['measured'])} inside.",
        "",
        *markdown_table(
            ("schedule", "ends higher by, law", "by, measured (90 % interval)"),
            [
                [name, f"{best['gains'][name][0]:+.4f}" if name in best["gains"] else "not fitted",
                 f"{gap:+.4f} ({least:+.4f} to {most:+.4f})"]
                for name, (gap, least, most) in gaps.items()
            ],
        ),
    ]  # fmt: skip
    return [*lines, ""]
