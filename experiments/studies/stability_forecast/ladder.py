"""The proxies: their runs, how far logits grow in them, LR sensitivity, and the growth extrapolated over width."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from scipy import stats

from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.record import listing, records

LRS = (1e-3, 4e-3, 1.6e-2, 6.4e-2, 0.256)
D_HEAD = 16
PLAIN, Z_LOSS, QK_NORM = "neither", "z-loss", "QK-norm"
ARMS: dict[str, tuple[bool, float]] = {PLAIN: (False, 0.0), Z_LOSS: (False, 1e-4), QK_NORM: (True, 0.0)}  # QK-norm, z
LEVEL = 0.9  # of intervals
DEGREE = 2  # of the fit over log width; Wortsman et al. 2023 extrapolate with a quadratic
LAYERS_EVERY = 10  # steps


def base_config(width: int, steps: int) -> ConfigDict:
    """One block of this width with heads of D_HEAD; no weight decay, so that nothing holds weights down."""
    values = {
        "model.d_model": width, "model.n_layers": 1, "model.n_heads": width // D_HEAD, "model.seq_len": 32,
        "train.global_batch": 16, "train.steps": steps, "schedule.warmup_steps": steps // 5,
        "optim.weight_decay": 0.0, "eval.every_steps": steps, "eval.batches": 32, "log.every_steps": 10,
        "log.layers_every": LAYERS_EVERY, "checkpoint.every_steps": steps, "sweep.pack": "turn",
    }  # fmt: skip
    return config_lib.override(tiny.get_config(), values)


def make_trials(width: int, steps: int, seeds: Sequence[int], arms: Sequence[str]) -> dict[str, ConfigDict]:
    """{name: config} of all rates and seeds of these arms."""
    trials = {}
    for arm in arms:
        qk_norm, z_loss = ARMS[arm]
        for lr in LRS:
            for seed in seeds:
                values = {"model.qk_norm": qk_norm, "train.z_loss": z_loss, "optim.peak_lr": lr, "train.seed": seed}
                changed = config_lib.override(base_config(width, steps), values)
                trials[run_name(arm, lr, seed)] = config_lib.resolve(changed)
    return trials


def run_name(arm: str, lr: float, seed: int) -> str:
    """The name of a run's folder."""
    return f"{arm}-lr{lr:g}-seed{seed}"


def read_rows(folder: pathlib.Path, width: int, seeds: Sequence[int], arms: Sequence[str]) -> list[dict[str, Any]]:
    """One row a run: arm, width, LR, seed, final loss (inf: diverged), and how far logits grew.

    `attention`: the largest attention logit of the measured steps; `log_z`: the mean logZ farthest from its start.
    """
    rows = []
    for arm in arms:
        for lr in LRS:
            for seed in seeds:
                place = folder / "runs" / run_name(arm, lr, seed)
                run, lines = listing.read_run(place), records.read_layers(place)
                lines = [line for line in lines if line["step"] % LAYERS_EVERY == 0]
                log_z = [line["logits/log_z"] for line in lines]
                rows.append(
                    {
                        "arm": arm,
                        "width": width,
                        "lr": lr,
                        "seed": seed,
                        "loss": run["val_loss"] if run["status"] == "done" else None,
                        "attention": max(max(line["attention_logit_max"]) for line in lines),
                        "log_z": max(log_z, key=lambda value: abs(value - log_z[0])),
                    }
                )
    return rows


def lr_sensitivity(losses: Sequence[Sequence[float | None]], start: float) -> tuple[float, float]:
    """(mean, standard error) over seeds of the LR sensitivity of losses [seeds][LRs]; None: diverged.

    Wortsman et al. 2023, sec. 2.2: the mean over the LRs of min(loss, loss at the start), less the lowest loss.
    """
    capped = np.array([[start if loss is None else min(loss, start) for loss in each] for each in losses])
    values = capped.mean(axis=1) - capped.min(axis=1)
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


def extrapolate(
    widths: Sequence[float], values: Sequence[float], width: float, degree: int = DEGREE, level: float = LEVEL
) -> dict[str, float]:
    """The value at a larger width by a polynomial in log-log, with the interval of a single new run there.

    Least squares; Student's t with the residual's variance and that of the fitted curve (Draper & Smith, sec. 1.4).
    """
    x, y = np.log2(widths), np.log2(values)
    design, at = np.vander(x, degree + 1), np.vander([math.log2(width)], degree + 1)[0]
    coefficients = np.linalg.lstsq(design, y)[0]
    freedom = len(y) - degree - 1
    variance = float(np.sum((y - design @ coefficients) ** 2)) / freedom
    spread = math.sqrt(variance * (1 + at @ np.linalg.solve(design.T @ design, at)))
    half = float(stats.t.ppf((1 + level) / 2, freedom)) * spread
    centre = float(at @ coefficients)
    return {"value": 2**centre, "low": 2 ** (centre - half), "high": 2 ** (centre + half)}


def growth_exponent(rows: Sequence[Mapping[str, Any]], arm: str, lr: float) -> float:
    """The slope of log(largest attention logit) over log(width)."""
    chosen = [row for row in rows if row["arm"] == arm and row["lr"] == lr]
    return float(np.polyfit(np.log([row["width"] for row in chosen]), np.log([r["attention"] for r in chosen]), 1)[0])


def predict(rows: Sequence[Mapping[str, Any]], width: int) -> list[dict[str, Any]]:
    """For each LR, the largest attention logit of a run of this width without QK-norm or z-loss."""
    predictions = []
    for lr in LRS:
        chosen = [row for row in rows if row["arm"] == PLAIN and row["lr"] == lr]
        points = [row["width"] for row in chosen], [row["attention"] for row in chosen]
        line = extrapolate(*points, width, degree=1)
        predictions.append({"lr": lr, "width": width} | extrapolate(*points, width) | {"line": line})
    return predictions


def score(predictions: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each prediction with the measured values of its LR, by seed, and how many lie in each interval."""
    scored = []
    for one in predictions:
        measured = [row["attention"] for row in rows if row["lr"] == one["lr"]]
        inside, by_line = (
            sum(each["low"] <= value <= each["high"] for value in measured) for each in (one, one["line"])
        )
        scored.append({**one, "measured": measured, "inside": inside, "inside_line": by_line})
    return scored
