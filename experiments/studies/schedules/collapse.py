"""Curves of models of several sizes, each trained for its share of tokens, laid over each other (Qiu et al. 2025).

The reducible loss R = L - E over its own end, against the share of compute. E is the quickstart's, from other runs of
this family. Legend: S seeds, P shares of compute.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab.experiments import isoflop
from scalelab.experiments.ladder_runs import size_and_tokens
from scalelab.experiments.shared import find_runs
from scalelab.record import records
from scalelab.sweep.scaling import ladder, rules

TOKENS_PER_PARAMETER = {16: 24.6, 24: 29.3, 32: 33.6, 40: 37.6}  # the optima of the quickstart's law, exact FLOPs
EVALS = 40
SHARES = np.linspace(0.1, 1.0, 37)  # of a run's compute; the warm-up ends at 0.08
JUDGED = slice(0, -4)  # up to 0.9: at 1 all curves meet by definition


def make_trials(widths: Sequence[int], seeds: Sequence[int]) -> dict[str, ConfigDict]:
    """{name: config} of every width and seed, LR and muP by the quickstart's rule, decay over the whole run."""
    base = config_lib.load(isoflop.ROOT / "configs" / "quickstart.py", {})
    rule, trials = rules.find_rule("small-bytes", base), {}
    for width in widths:
        resized = ladder.resize_width(base, width)
        per_step = base.train.global_batch * base.model.seq_len
        steps = round(TOKENS_PER_PARAMETER[width] * size_and_tokens(resized)[0] / per_step)
        rung = ladder.make_rung(base, width, steps * ladder.flops_per_step(resized), rule)
        values = {"schedule.name": "linear", "schedule.final_share": 0.0, "eval.batches": 16,
                  "eval.every_steps": steps // EVALS, "log.role": "", "checkpoint.every_steps": steps}  # fmt: skip
        for seed in seeds:
            changed = config_lib.override(rung, values | {"train.seed": seed})
            trials[f"d{width}-seed{seed}"] = config_lib.resolve(changed)
    return trials


def read_reducible(folder: pathlib.Path, names: Sequence[str], floor: float) -> np.ndarray:
    """R [S, P] of these runs, losses interpolated between evaluations."""
    rows = []
    places = find_runs(folder)
    for name in names:
        metrics = records.read_metrics(places[name])
        evaluated = [(line["step"], line["val_loss"]) for line in metrics if "val_loss" in line]
        steps, losses = np.array(evaluated).T
        rows.append(np.interp(SHARES, steps / steps[-1], losses) - floor)
    return np.array(rows)


def measure_spread(reducible: Mapping[int, np.ndarray]) -> dict[str, Any]:
    """Spread of normalised curves over all sizes and seeds, and the noise between seeds of one size; both relative [P].

    `ratio` is the root mean square of the first over that of the second, up to nine tenths of compute.
    """
    normalised = {width: each / each[:, -1:] for width, each in reducible.items()}
    pooled = np.concatenate([*normalised.values()])
    spread = pooled.std(axis=0, ddof=1) / pooled.mean(axis=0)
    noise = np.sqrt(np.mean([each.var(axis=0, ddof=1) / each.mean(axis=0) ** 2 for each in reducible.values()], axis=0))
    root = [float(np.sqrt(np.mean(each[JUDGED] ** 2))) for each in (spread, noise)]
    return {
        "shares": SHARES.tolist(), "spread": spread.tolist(), "noise": noise.tolist(),
        "spread_rms": root[0], "noise_rms": root[1], "ratio": root[0] / root[1],
        "raw_spread": raw_spread(reducible),
        "curves": {str(width): each.mean(axis=0).tolist() for width, each in normalised.items()},
    }  # fmt: skip


def raw_spread(reducible: Mapping[int, np.ndarray]) -> float:
    """The spread of curves that are not normalised, relative, up to nine tenths of compute."""
    pooled = np.concatenate([*reducible.values()])[:, JUDGED]
    return float(np.sqrt(np.mean((pooled.std(axis=0, ddof=1) / pooled.mean(axis=0)) ** 2)))
