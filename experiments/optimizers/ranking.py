"""Results of the race: losses, ranks and differences with intervals, the cost to a target, and possible reasons."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.config.optimizer_defaults import OPTIM_DEFAULTS
from scalelab.experiments import intervals
from scalelab.experiments.optimizers import race

# Possible reasons for a place above or below the reference; printed as a guess beside the measurement.
REASONS_BEHIND = {
    "sgd": "embedding, norms and matrices have gradients of very different size, and share one LR "
    "(Zhao et al. 2024, section 4)",
    "momentum": "it averages gradients, and doesn't make their sizes alike (sgd neither)",
    "lion": "signs want large batches (Chen et al. 2023, section 4.6)",
    "adam": "decay in the gradient is divided by the second moment as the gradient is (Loshchilov & Hutter 2019)",
    "ademamix": "its slow moment needs thousands of steps to be worth its weight (Pagliardini et al. 2024, figure 2)",
    "apollo": "a channel has one scale instead of an element's own second moment",
    "apollo_mini": "a matrix has one scale: SGD's memory with a norm that is followed",
    "sophia_h": "its Hessian is fresh every few steps only; short runs see few of them",
    "sophia_g": "its Hessian is fresh every few steps only; short runs see few of them",
    "shampoo": "its statistics are sums, so a matrix's step falls as 1/sqrt(t) beside the schedule "
    "(Gupta et al. 2018, Alg. 1)",
}
REASONS_AHEAD = {
    "adafactor": "its step is a share of a parameter's own size, and its second moment has rank one",
    "muon": "every direction of a matrix moves alike, rare ones too",
    "soap": "Adam runs in the eigenbasis of Shampoo's factors",
    "schedule_free_adamw": "its average stands for a decay: it runs at a constant LR, the others along the cosine",
}


def cost_to_target(runs: Sequence[dict[str, Any]], target: float, tokens_per_step: int) -> dict[str, float] | None:
    """Median over seeds of steps, tokens and seconds to a validation loss of `target`; None if a seed misses it.

    Between two evaluations the loss is interpolated linearly; seconds are at the run's median rate.
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


def describe_difference(difference: intervals.MeanDifference | None, name: str) -> str:
    """Describe a difference to the reference: what its interval shows, and a possible reason."""
    if difference is None:
        return "diverged on a fresh seed, so there is no mean difference"
    interval = f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    if difference.low <= 0 <= difference.high:
        return f"{interval}: the interval holds 0, so which is better is open"
    side = "behind" if difference.low > 0 else "ahead"
    why = (REASONS_BEHIND if side == "behind" else REASONS_AHEAD).get(name)
    return f"{interval}: {side}" + (f"; perhaps because {why}" if why else "")


def ranking_rows(
    tuned: Mapping[str, Mapping[str, Any]],
    ended: Mapping[str, Mapping[str, Any]],
    state_bytes: Mapping[str, float],
    target: float | None,
    tokens_per_step: int,
) -> list[dict[str, Any]]:
    """One row per optimizer, best first: tuned loss, fresh loss, rank (with intervals), values, bytes, target.

    `tuned` and `ended` as from `race.tune_optimizers` and `race.run_finals`. The reference is adamw, or the first if
    there is none.
    """
    names = list(ended)
    finals = [ended[name]["finals"] for name in names]
    losses = [final.loss for final in finals]
    draws = intervals.final_losses(finals)
    columns = zip(
        names, losses, intervals.rank_losses(losses), intervals.rank_intervals(losses, draws), draws.T, strict=True
    )
    rows: list[dict[str, Any]] = []
    for name, loss, rank, around, drawn in columns:
        each, runs = tuned[name], ended[name]["runs"]
        by_tuning = race.order_by_loss(each["runs"])
        rows.append({
            "name": name, "rank": rank, "rank_interval": list(around), "loss": loss,
            "interval": list(intervals.percentile_interval(loss, drawn)), "losses": [run["loss"] for run in runs],
            "tuned_loss": each["runs"][by_tuning[0]]["loss"], "chosen": ended[name]["finals"].chosen + 1,
            "finals": ended[name]["finals"]._asdict(),
            "diverged": sum(not math.isfinite(run["loss"]) for run in each["runs"]), "trials": len(each["runs"]),
            "scan": {str(octave): loss for octave, loss in sorted(each["scan"].items())},
            "boxes": each["boxes"], "widened": each["widened"], "edge": each["edge"],
            "values": dict(ended[name]["values"]), "lr_octaves": _octaves(name, ended[name]["values"]),
            "state_bytes_per_parameter": state_bytes[name],
            "target": cost_to_target(runs, target, tokens_per_step) if target is not None else None,
        })  # fmt: skip
    rows.sort(key=lambda row: row["rank"])
    reference = next((row for row in rows if row["name"] == "adamw"), rows[0])
    for row in rows:
        alone = row is reference
        apart = None if alone else intervals.mean_difference(*(dict(enumerate(r["losses"])) for r in (row, reference)))
        row["difference"] = apart._asdict() if apart else None
        row["explained"] = "the reference" if alone else describe_difference(apart, row["name"])
    return rows


def _octaves(name: str, values: Mapping[str, Any]) -> float:
    """Octaves from the optimizer's default LR."""
    return math.log2(values["optim.peak_lr"] / OPTIM_DEFAULTS[name]["peak_lr"][0])


def loss_rise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Loss on fresh seeds minus the tuned loss, over all finished rows: how much of a tuned loss was luck."""
    rises = [row["loss"] - row["tuned_loss"] for row in rows if math.isfinite(row["loss"])]
    if not rises:
        return dict.fromkeys(("mean", "least", "most"), math.inf)
    return {"mean": statistics.mean(rises), "least": min(rises), "most": max(rises)}
