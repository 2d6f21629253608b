"""The runs: sizes x ways to train them, and their losses at each budget by either count of parameters."""

import functools
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.configs import base
from scalelab.model import count
from scalelab.record import records

BUDGETS = (4e9, 8e9, 1.6e10, 3.2e10, 6.4e10)  # FLOPs, 6ND
SIZES = (4, 6, 8, 12, 16, 24, 32, 48)  # d_model
LARGEST = {4: 4e9, 6: 8e9, 8: 1.6e10, 12: 3.2e10}  # d_model: the largest budget of a run; of others the last
LONG_LARGEST = {4: 1.6e10, 6: 2.4e10, 8: 3.2e10}  # of Kaplan's runs: what he leaves out of C is most of small models
MATCHED = {4e9: (4, 6, 8, 12), 8e9: (4, 6, 8, 12, 16), 1.6e10: (6, 8, 12, 16, 24), 3.2e10: (8, 12, 16, 24, 32),
           6.4e10: (12, 16, 24, 32)}  # fmt: skip
SEEDS, QUICK_SEEDS = (0, 1), (0,)
STEP_TOKENS, LONG_WARMUP, LR = 512, 400, 3e-3
RATES = (0.5, 1.0, 2.0)  # factors on 0.009 sqrt(16 / d_model)
MORE_RATES = {d: (0.25, 4.0) for d in (6, 8, 12, 16, 24)}  # of sizes near the best ones
SHARED = {
    "model.mlp": "relu2", "model.tied_head": True, "model.seq_len": 64, "train.global_batch": STEP_TOKENS // 64,
    "optim.beta2": 0.95, "schedule.name": "cosine", "eval.batches": 32, "train.steps_per_dispatch": 50,
    "guard.policy": "off",
}  # fmt: skip
Points = dict[str, np.ndarray]  # columns C, N, loss, seed


def build_model(d_model: int) -> ConfigDict:
    """Two layers with a tied head, on bytes in sequences of 64."""
    config = base.get_config()
    config.model = base.llama(d_model, n_layers=2, n_heads=1 if d_model < 8 else 2)
    return config_lib.override(config, SHARED)


@functools.cache
def count_parameters(d_model: int) -> dict[str, int]:
    """Parameters by convention; `total` has the tied output matrix once."""
    return count.count_parameters(config_lib.static(config_lib.resolve(build_model(d_model))).model)


def count_steps(d_model: int, budget: float, multiple: int = 1) -> int:
    """Steps that spend 6ND FLOPs; rounded up to a multiple, for even evaluations."""
    steps = budget / (6 * count_parameters(d_model)["total"] * STEP_TOKENS)
    return round(steps) if multiple == 1 else multiple * math.ceil(steps / multiple)


def make_trial(d_model: int, steps: int, warmup: int, **values: Any) -> ConfigDict:
    """A run; where the warm-up is longer than the run, it ends on the way up."""
    peak_lr = values.pop("peak_lr", LR) * min(1, steps / warmup)
    evaluations = values.pop("evaluations", 16)
    changes = {
        "train.steps": steps, "optim.peak_lr": peak_lr, "schedule.warmup_steps": min(warmup, steps),
        "eval.every_steps": steps // evaluations, "log.every_steps": steps, "checkpoint.every_steps": steps,
    }  # fmt: skip
    return config_lib.resolve(config_lib.override(build_model(d_model), changes | values))


def make_trials(seeds: Sequence[int]) -> dict[str, ConfigDict]:
    """{ARM-dWIDTH-…-seedSEED: config} of all arms."""
    top = BUDGETS[-1]
    steps = {d: count_steps(d, LARGEST.get(d, top), 32) for d in SIZES}
    long_steps = {d: count_steps(d, LONG_LARGEST.get(d, top), 32) for d in SIZES}
    horizon = max(long_steps.values())
    trials = {}
    for seed in seeds:
        for d in SIZES:
            short = max(2, round(count_parameters(d)["total"] / STEP_TOKENS))
            fall = {
                key: {"schedule.fall_share": horizon / n[d], "train.seed": seed}
                for key, n in (("long", long_steps), ("short", steps))
            }
            constant = {"schedule.final_share": 1.0, "train.seed": seed}
            trials[f"long-d{d}-seed{seed}"] = make_trial(d, long_steps[d], LONG_WARMUP, evaluations=32, **fall["long"])
            trials[f"short-d{d}-seed{seed}"] = make_trial(d, steps[d], short, **fall["short"])
            for factor in (*RATES, *MORE_RATES.get(d, ())):
                rate = factor * 9e-3 * (16 / d) ** 0.5
                trials[f"tuned-d{d}-x{factor:g}-seed{seed}"] = make_trial(d, steps[d], short, peak_lr=rate, **constant)
            for budget in (each for each in BUDGETS if d in MATCHED[each]):
                n = count_steps(d, budget)
                trials[f"matched-d{d}-{budget:g}-seed{seed}"] = make_trial(
                    d, n, min(short, n // 2), evaluations=1, **{"train.seed": seed}
                )
    return trials


def read_points(
    folder: pathlib.Path, arm: str, convention: str, seeds: Sequence[int], budgets: Sequence[float]
) -> Points:
    """Losses of every size at each budget C = 6ND, read off the curves of loss over D (in logs of both)."""
    rows = []
    for budget in budgets:
        for d in SIZES:
            N = count_parameters(d)[convention]
            pattern = f"{arm}-d{d}-{budget:g}-seed" if arm == "matched" else f"{arm}-d{d}-"
            curves = {run.name: read_curve(run) for run in sorted((folder / "runs").glob(f"{pattern}*"))}
            kinds: dict[str, list[float]] = {}  # by learning rate
            for name, curve in curves.items():
                kinds.setdefault(name.rpartition("-")[0], []).append(loss_at(curve, budget / (6 * N)))
            complete = [each for each in kinds.values() if np.all(np.isfinite(each))]
            if complete:
                best = min(complete, key=np.mean)
                rows += [(budget, N, loss, seed) for loss, seed in zip(best, seeds, strict=True)]
    return dict(zip(("C", "N", "loss", "seed"), np.array(rows).T, strict=True))


@functools.cache
def read_curve(run: pathlib.Path) -> np.ndarray:
    """(tokens, validation losses) [2, evaluations] of a run."""
    lines = [line for line in records.read_metrics(run) if line.get("val_loss")]
    return np.array([[line[key] for line in lines] for key in ("tokens", "val_loss")])


def loss_at(curve: np.ndarray, tokens: float, tolerance: float = 0.01) -> float:
    """The loss after so many tokens; NaN further outside of the curve than this share (steps are whole numbers)."""
    if not (1 - tolerance) * curve[0, 0] <= tokens <= (1 + tolerance) * curve[0, -1]:
        return float("nan")
    return float(np.exp(np.interp(np.log(tokens), *np.log(curve))))
