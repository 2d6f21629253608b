"""What a tuning says: its plan before, its result after."""

from collections.abc import Mapping
from typing import Any

from scalelab.errors import quote_path
from scalelab.laws.use.settings.optima import LEAST_VALUES
from scalelab.sweep.tune.search import SEARCH_SEED, surface_points
from scalelab.sweep.tune.space import draw_points
from scalelab.sweep.tune.stages import Tuning


def describe_counts(tuning: Tuning) -> list[str]:
    """How the budget is spent, and what is searched."""
    counts, arms = tuning.counts(), len(tuning.spec.arms)
    number = f"{tuning.rounds} round{'s' if tuning.rounds > 1 else ''}"
    rounds = f"{number} of {counts['round']} points" + (f" for each of {arms} arms" if arms > 1 else "")
    lines = [
        f"{tuning.trials} runs: {counts['probes']} probes of stability, {rounds} at {tuning.short} steps, up to "
        f"{counts['long']} in full ({tuning.steps} steps), {counts['fresh']} on fresh seeds"
    ]
    for each in tuning.spec.space:
        lines.append(f"searched: {each.key} from {each.low:g} to {each.high:g}, {each.scale}")
    lines += describe_surface(tuning)
    if arms > 1:
        lines.append(f"compared: {', '.join(tuning.spec.arms)}")
    if tuning.spec.fixed:
        lines.append(f"held as they are: {', '.join(tuning.spec.fixed)}")
    return lines


def describe_surface(tuning: Tuning) -> list[str]:
    """How many trials the surface through all rounds needs, of those planned, and the keys that allow none."""
    needed, planned = surface_points(tuning.spec.space), tuning.rounds * tuning.counts()["round"]
    lost = planned - needed
    lines = [
        f"a surface over {len(tuning.spec.space)} key(s) needs {needed} trials that end, of the {planned} planned: "
        f"{lost or 'none'} may diverge"
    ]
    for each in tuning.spec.space:
        if each.whole and (values := round(each.high) - round(each.low) + 1) < LEAST_VALUES:
            lines.append(
                f"WARNING: {each.key} takes {values} values and a surface needs {LEAST_VALUES}: the best trial will "
                "decide; name the key as scientific to compare them"
            )
    return lines


def describe_plan(tuning: Tuning) -> list[str]:
    """The plan with the points of the first round."""
    points = draw_points(tuning.spec.space, tuning.counts()["round"], SEARCH_SEED)
    keys = [each.key for each in tuning.spec.space]
    rows = [", ".join(f"{key}={value:.4g}" for key, value in zip(keys, point, strict=True)) for point in points]
    return [*describe_counts(tuning), "the first round:", *(f"  {row}" for row in rows)]


def plan_json(tuning: Tuning) -> dict[str, Any]:
    """The plan as plain JSON."""
    points = draw_points(tuning.spec.space, tuning.counts()["round"], SEARCH_SEED)
    keys = [each.key for each in tuning.spec.space]
    first = [dict(zip(keys, point, strict=True)) for point in points]
    surface = {"needs": surface_points(tuning.spec.space), "planned": tuning.rounds * tuning.counts()["round"]}
    return {"counts": tuning.counts(), "surface": surface, "arms": list(tuning.spec.arms), "first_round": first}


def describe_result(summary: Mapping[str, Any]) -> list[str]:
    """Each arm's best values with intervals, the gain, and the verdict last."""
    lines = []
    for arm, found in summary["arms"].items():
        tried = len(found["tried"])
        lines.append(f"{arm}: {tried} short trials, {found['infeasible']} infeasible")
        if found["values"] is None:
            lines.append("  no long run ended better than it began: no result")
            continue
        located = found["optimum"]["status"] in ("used", "edge")
        for key, value in found["values"].items():
            ends = found["optimum"]["interval90"].get(key)
            spread = f"; the best lies in {ends[0]:.4g} to {ends[1]:.4g} (90%)" if ends and located else ""
            lines.append(f"  {key} = {format_value(value)}{spread}")
        if found["optimum"]["why"]:
            lines.append(f"  the surface through all short trials: {found['optimum']['why']}")
        lines.append(f"  {describe_checkpoint(found['best_checkpoint'])}")
    for arm, gain in summary["between_arms"].items():
        lines.append(f"{arm} against {summary['winner']['arm']}: {describe_gain(gain)}")
    scatter = summary["gain"]["scatter"]
    if scatter is not None:
        lines.append(f"over fresh seeds the best scatters by {scatter:.4f} nats")
    spent = summary["spent"]
    lines.append(f"spent: {spent['trials']} runs, {spent['flops']:.3g} FLOPs")
    lines.append(f"scalelab train --config={quote_path(summary['winner']['config'])} trains the best")
    return [*lines, summary["verdict"]]


def describe_checkpoint(best: Mapping[str, Any]) -> str:
    """Whether the last checkpoint was the best, in retrospect."""
    if best["step"] == best["last_step"]:
        return f"the last checkpoint (step {best['last_step']}) is its best"
    return (
        f"its best checkpoint was at step {best['step']} of {best['last_step']} ({best['loss']:.4f}): shorter runs or "
        "a longer decay may do as well"
    )


def describe_gain(gain: Mapping[str, Any]) -> str:
    """A difference of two arms with its interval."""
    if gain["mean"] is None:
        return "one of them diverges on fresh seeds"
    ends = gain["interval90"]
    return f"{gain['mean']:+.4f} nats" + ("" if ends is None else f" (90%: {ends[0]:+.4f} to {ends[1]:+.4f})")


def format_value(value: Any) -> str:
    """A config value in few characters."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)
