"""Compare two runs: the differing values that the computation depends on, and the first step that differs."""

from typing import Any

from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.verdict import Verdict, make_verdict
from scalelab.errors import quote_path
from scalelab.evaluate.compare import compare_runs

MOST_KEYS = 6  # most differences named in a line
SAME_LOSS = 1e-3  # relative difference of the first losses of two runs on the same weights and batch
SAME_RATIO = 0.02  # relative distance of a ratio of gradient norms from a whole number


def judge_against(run: Evidence, other: Evidence) -> tuple[list[Verdict], dict[str, Any]]:
    """Judge `run` by `other`: verdicts, and the comparison (`scalelab compare`). BadInput as in `compare_runs`."""
    comparison = compare_runs(str(run.folder), str(other.folder))
    first = comparison["metrics"]["first"]
    if first is None:
        return [], comparison
    step = int(first["step"])
    verdicts = [verdict for verdict in (_norm_ratio(run, other),) if verdict]
    return [*verdicts, _first_difference(run, comparison, first, step)], comparison


def _norm_ratio(run: Evidence, other: Evidence) -> Verdict | None:
    """Find micro-batches that were not averaged: equal losses, and a gradient norm a whole number of times as large."""
    ours, theirs = (each.rows[0] for each in (run, other))
    k = int(run.values.get("train.accumulate", 1))
    same_loss = abs(ours["train_loss"] - theirs["train_loss"]) <= SAME_LOSS * abs(theirs["train_loss"])
    if k == 1 or ours["step"] != theirs["step"] or not same_loss or not theirs["grad_norm"]:
        return None
    ratio = ours["grad_norm"] / theirs["grad_norm"]
    if abs(ratio / k - 1) > SAME_RATIO:
        return None
    text = f"at step {ours['step']} both have a loss of {ours['train_loss']:.4g}, and the gradient norm is {ratio:.4g} "
    text += f"times the other run's, with train.accumulate={k}"
    knob = "divide by the tokens of all micro-batches"
    confirm = f"scalelab diagnose {run.quoted} --live"
    return make_verdict("missing_1_over_K", "signature", ratio, text, knob, confirm, (int(ours["step"]),) * 2)


def _first_difference(run: Evidence, comparison: dict[str, Any], first: dict[str, Any], step: int) -> Verdict:
    """Explain the first difference by the likeliest cause: config, data, environment, or none in the records."""
    config = {key: (c["a"], c["b"]) for key, c in comparison["config"].items() if c["computes"]}
    differences = {"config": config, "data": comparison["data"], "environment": comparison["environment"]}
    kind, values = next(((kind, values) for kind, values in differences.items() if values), ("state", {}))
    named = ", ".join(f"{key}: {a!r} here, {b!r} there" for key, (a, b) in list(values.items())[:MOST_KEYS])
    metric, change = next(iter(first["differ"].items()))
    ours, theirs = ("none" if change[side] is None else f"{change[side]:.6g}" for side in "ab")
    text = f"the runs part at step {step}: {metric} {ours} here, {theirs} there"
    text += f"; {named}" if named else "; config, data and environment are the same: a restart, or the hardware"
    knob = next(iter(values), "restore the state, and run the step again")
    confirm = f"scalelab compare {quote_path(comparison['a'])} {quote_path(comparison['b'])}"
    return make_verdict(f"other_{kind}", "test" if values else "symptom", 1.0, text, knob, confirm, (step, step))
