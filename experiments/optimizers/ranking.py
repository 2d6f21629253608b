"""What is made of the runs: ranks, how sure they are, what a target costs, and what explains a difference."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.optimizers.race import LR_FACTORS
from scalelab.defaults import DEFAULTS

DRAWS = 2000
# Why an optimizer may stand where it does; said beside what was measured, not instead of it.
KNOWN = {
    "sgd": "one LR for gradients of very different size: embedding, norms and matrices (Zhao et al. 2024, section 4)",
    "momentum": "as sgd: momentum averages gradients, and doesn't make their sizes alike",
    "lion": "signs want small LRs and large batches (Chen et al. 2023, section 4.6)",
    "adafactor": "its step is a share of a parameter's own size, and its second moment has rank one",
    "adam": "decay in the gradient is divided by the second moment as the gradient is (Loshchilov & Hutter 2019)",
    "ademamix": "its slow moment needs thousands of steps to be worth its weight (Pagliardini et al. 2024, figure 2)",
    "galore": "a rank-r view of each gradient: less memory, some loss",
    "apollo": "one scale a channel instead of an element's own second moment",
    "apollo_mini": "one scale a matrix: SGD's memory with a norm that is followed",
    "sophia_h": "its Hessian is fresh every few steps only; short runs see few of them",
    "sophia_g": "its Hessian is fresh every few steps only; short runs see few of them",
    "muon": "every direction of a matrix moves alike, rare ones too",
    "shampoo": "its statistics are sums, so a matrix's step falls as 1/sqrt(t) beside the schedule (Gupta et al. 2018, Alg. 1)",
    "soap": "Adam in the eigenbasis of Shampoo's factors",
    "schedule_free_adamw": "its average stands for a decay: it runs at a constant LR, the others along the cosine",
}


def best(tuned: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, int]:
    """{optimizer: which of its tuning runs is lowest}; the first where all diverged."""
    return {name: int(np.argmin([run["loss"] for run in runs])) for name, runs in tuned.items()}


def flips(tuned: Mapping[str, Sequence[dict[str, Any]]], seed: int = 0) -> dict[str, Any]:
    """How sure the order of the tuned losses is, by bootstrap over each optimizer's tuning trials.

    `pairs`: the share of pairs of optimizers that stand the other way round in a draw, on average; `first`: how often the
    first is another; `ranks90`: each one's ranks between the 5 % and 95 % quantile.
    """
    random, names = np.random.default_rng(seed), list(tuned)
    losses = np.array([[run["loss"] for run in tuned[name]] for name in names])
    picked = random.integers(losses.shape[1], size=(DRAWS, *losses.shape))
    drawn = np.take_along_axis(np.broadcast_to(losses, picked.shape), picked, axis=2).min(axis=2)
    ranks, observed = drawn.argsort(axis=1, kind="stable").argsort(axis=1), losses.min(axis=1)
    above, pairs = np.triu_indices(len(names), 1), []
    for i, j in zip(*above, strict=True):
        pairs.append(np.mean(np.sign(drawn[:, i] - drawn[:, j]) * np.sign(observed[i] - observed[j]) < 0))
    quantiles = np.quantile(ranks + 1, (0.05, 0.95), axis=0).T
    return {
        "pairs": float(np.mean(pairs)) if pairs else 0.0,
        "first": float(np.mean(drawn.argmin(axis=1) != observed.argmin())),
        "ranks90": {name: [int(low), int(high)] for name, (low, high) in zip(names, quantiles, strict=True)},
    }


def to_target(runs: Sequence[dict[str, Any]], target: float, tokens_per_step: int) -> dict[str, float] | None:
    """Median over seeds of steps, tokens and seconds until a validation loss of `target`; None where one never gets there.

    Between two evaluations the loss is taken for a straight line; seconds at the median rate of the run.
    """
    steps = []
    for run in runs:
        points = [(0, math.inf), *run["curve"]]
        for (s0, l0), (s1, l1) in itertools.pairwise(points):
            if l1 <= target:
                steps.append(s1 if not math.isfinite(l0) else s0 + (s1 - s0) * (l0 - target) / max(l0 - l1, 1e-12))
                break
        else:
            return None
    tokens = statistics.median(steps) * tokens_per_step
    rate = statistics.median(run["tokens_per_s"] for run in runs)
    return {"steps": statistics.median(steps), "tokens": tokens, "seconds": tokens / rate}


def explain(row: Mapping[str, Any], reference: Mapping[str, Any], trials: int) -> str:
    """One line: the difference to the reference against the seeds' spread, what tuning says, and what is known."""
    apart = row["loss"] - reference["loss"]
    noise = math.hypot(row["deviation"], reference["deviation"])
    said = []
    if row["name"] == reference["name"]:
        said.append("the reference")
    elif not math.isfinite(apart):
        said.append("diverged on a fresh seed")
    elif abs(apart) <= 2 * noise:
        said.append(f"{apart:+.3f}, within twice the seeds' spread of {noise:.3f}: no difference shown")
    else:
        said.append(f"{apart:+.3f}, {abs(apart) / noise if noise else math.inf:.0f} times the seeds' spread")
    if row["diverged"]:
        said.append(f"{row['diverged']} of {trials} trials diverged")
    factor = row["values"]["optim.peak_lr"] / DEFAULTS[row["name"]]["peak_lr"][0]
    if not 1.5 * LR_FACTORS[0] < factor < LR_FACTORS[1] / 1.5:
        said.append(f"its best LR is {factor:.2g} times its source's, near the end of what was tried")
    if row["name"] in KNOWN and row["name"] != reference["name"]:
        said.append(KNOWN[row["name"]])
    return "; ".join(said)


def table(
    tuned: Mapping[str, Sequence[dict[str, Any]]], ended: Mapping[str, Sequence[dict[str, Any]]],
    values: Mapping[str, Mapping[str, Any]], state_bytes: Mapping[str, float], target: float | None, tokens_per_step: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row an optimizer, best first: loss over seeds with its standard deviation, tuned values, bytes, target, explanation."""
    rows: list[dict[str, Any]] = []
    for name, runs in ended.items():
        losses = [run["loss"] for run in runs]
        finite = all(map(math.isfinite, losses))
        rates = [run["tokens_per_s"] for run in runs if run["tokens_per_s"]]
        rows.append({
            "name": name, "loss": statistics.mean(losses) if finite else math.inf,
            "deviation": statistics.stdev(losses) if finite and len(losses) > 1 else 0.0,
            "losses": losses, "tuned_loss": min(run["loss"] for run in tuned[name]),
            "diverged": sum(not math.isfinite(run["loss"]) for run in tuned[name]),
            "values": dict(values[name]), "state_bytes_per_parameter": state_bytes[name],
            "tokens_per_s": statistics.median(rates) if rates else None,
            "target": to_target(runs, target, tokens_per_step) if target is not None else None,
        })  # fmt: skip
    rows.sort(key=lambda row: row["loss"])
    reference = next((row for row in rows if row["name"] == "adamw"), rows[0])
    for row in rows:
        row["explained"] = explain(row, reference, len(tuned[row["name"]]))
    return rows
