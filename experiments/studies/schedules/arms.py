"""Schedules of one length on the model of `experiments/curves.py`: their runs, final losses and whole curves."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.api.laws.curves import read_curve
from scalelab.experiments import curves
from scalelab.experiments.shared import find_runs
from scalelab.laws.curves.curve import Curve, make_curve
from scalelab.record import records
from scalelab.sweep.answer.differences import mean_difference

SHARES = (5, 10, 20, 40)  # per cent of the run that the decay takes
STANDARD = "wsd20"
TUNED = ("cosine", STANDARD)  # at every LR; the others at the middle one
LRS = (0.0025, 0.005, 0.01, 0.02)
MIDDLE = LRS[1]
EVALS = 40  # of a run, each of 8,192 tokens


def list_arms(steps: int) -> dict[str, dict[str, Any]]:
    """{arm: config values} for runs of `steps` steps."""
    decays = {f"wsd{share}": {"schedule.decay_steps": round(share * steps / 100)} for share in SHARES}
    decays |= {
        f"{STANDARD}-{shape}": decays[STANDARD] | {"schedule.decay_shape": shape} for shape in ("cosine", "sqrt")
    }
    wsd = {"schedule.name": "wsd", "schedule.final_share": 0.0}
    cosine = curves.SCHEDULES["cosine"]
    return {
        "constant": curves.SCHEDULES["constant"], "cosine": cosine,
        "cosine-to-0": cosine | {"schedule.final_share": 0.0},
        **{arm: wsd | values for arm, values in decays.items()},
    }  # fmt: skip


def make_trials(steps: int, seeds: Sequence[int]) -> dict[str, ConfigDict]:
    """{name: config} of every arm, LR and seed."""
    each = {"train.steps": steps, "schedule.warmup_steps": steps // 20, "eval.every_steps": steps // EVALS,
            "eval.batches": 16, "checkpoint.every_steps": steps}  # fmt: skip
    base = config_lib.load(curves.ROOT / "configs" / "tiny.py", curves.SMALL | each)
    return {
        name_run(arm, lr, seed): config_lib.resolve(
            config_lib.override(base, values | {"optim.peak_lr": lr, "train.seed": seed})
        )
        for arm, values in list_arms(steps).items()
        for lr in (LRS if arm in TUNED else (MIDDLE,))
        for seed in seeds
    }


def name_run(arm: str, lr: float, seed: int) -> str:
    """The name of a run's folder."""
    return f"{arm}-lr{lr:g}-seed{seed}"


def read_finals(folder: pathlib.Path, seeds: Sequence[int]) -> dict[str, dict[float, list[float]]]:
    """{arm: {LR: final validation losses by seed}} of all runs."""
    losses = {name: records.read_record(place)["val_loss"] for name, place in find_runs(folder).items()}
    return {
        arm: {lr: [losses[name_run(arm, lr, seed)] for seed in seeds] for lr in (LRS if arm in TUNED else (MIDDLE,))}
        for arm in list_arms(100)
    }


def find_best(losses: dict[float, list[float]]) -> float:
    """The LR of the least mean loss."""
    return min(losses, key=lambda lr: float(np.mean(losses[lr])))


def compare_losses(losses: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Mean difference of losses by seed, its standard error and 90 % interval."""
    difference = mean_difference(dict(enumerate(losses)), dict(enumerate(others)))
    assert difference is not None
    return {"mean": difference.mean, "error": difference.error, "low": difference.low, "high": difference.high}


def mean_curve(folder: pathlib.Path, arm: str, seeds: Sequence[int]) -> Curve:
    """The curve of an arm at the middle LR: losses are means over seeds."""
    places = find_runs(folder)
    each = [read_curve(places[name_run(arm, MIDDLE, seed)]) for seed in seeds]
    return make_curve(arm, each[0].lr, each[0].steps, np.mean([curve.loss for curve in each], axis=0))
