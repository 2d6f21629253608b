"""Format what `scalelab ablate` prints."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalelab.cli.parser import align_columns
from scalelab.laws.use.multiplier.result import CURRENCIES, format_factor, join_ends


def describe_variant(result: Mapping[str, Any], baseline: str) -> list[str]:
    """Format the table by rung and currency, the trend, the target, and last the verdict."""
    known = [key for key in CURRENCIES if any(rung["m"][key] is not None for rung in result["rungs"])]
    head = [
        "FLOPs",
        baseline,
        result["variant"],
        "pairs" if result["blocks"] else "seeds",
        *(f"m in {key}" for key in known),
    ]
    rows = [[_loss_row(rung), [times(rung, key) for key in known]] for rung in result["rungs"]]
    lines = align_columns([head, *([*first, *rest] for first, rest in rows)])
    lines.append("losses: geometric means over seeds, as m is a ratio (`scalelab sweep` prints arithmetic means)")
    law, unit = result["law"], result["law"]["unit"]
    lines += [f"{baseline}'s law: {law['E']:.4g} + {law['A']:.4g} (C / {unit:.3g})^-{law['alpha']:.4g}"]
    lines += [*_trend(result["trend"]), *_target(result["target"])]
    for other in result["pinned"]:
        lines.append(f"at the target, were E {other['E']:.4g}: {format_factor(other['m'])}")
    lines += result["notes"]
    if "scored" in result:
        lines.append(describe_score(result["scored"]))
    if "next" in result:
        lines.append(
            describe_next(result["next"])
            if result["verdict"].startswith("undecided")
            else "next: nothing; it is settled"
        )
    return [*lines, f"criterion: {result['criterion']}", f"{result['variant']}: {result['verdict']}"]


def _loss_row(rung: Mapping[str, Any]) -> list[str]:
    losses = [
        f"{rung[side]:.4f}" if rung[side] is not None else "diverged" if lost else "-"
        for side, lost in zip(("baseline", "variant"), rung["diverged"], strict=True)
    ]
    one, other = rung["n_seeds"]
    return [f"{rung['C']:.4g}", *losses, str(one) if one == other else f"{one}, {other}"]


def times(rung: Mapping[str, Any], key: str) -> str:
    """Format a multiplier with its interval in few characters."""
    m, ends = rung["m"][key], rung["interval90"][key]
    if m is None:
        return "-"
    return format_factor(m) if ends is None else f"{format_factor(m)} ({join_ends(ends)})"


def _trend(trend: Mapping[str, Any]) -> list[str]:
    if trend["b"] is None:
        return []
    ends = trend["interval90"]
    spread = "" if ends is None else f" ({ends[0]:+.3f} to {ends[1]:+.3f}; P(no trend) {trend['p_b']:.2g})"
    return [f"trend: log m = {trend['a']:+.4f} {trend['b']:+.4f} log(C / {trend['centre']:.3g}){spread}"]


def _target(target: Mapping[str, Any]) -> list[str]:
    if target["m"] is None:
        return []
    ends = target["interval90"]
    spread = ", no interval" if ends is None else f" ({join_ends(ends)}), P(m > 1) {target['p_better']:.3f}"
    source = "the rung's own" if target["measured"] else "by the curve through the rungs"
    lines = [f"at {target['C']:.4g} FLOPs: m {format_factor(target['m'])}{spread}, {source}"]
    if ends is not None and target["together90"] != ends:
        lines.append(f"at the target, wide enough for all variants together: {join_ends(target['together90'])}")
    if deciding := target.get("deciding"):  # summaries of older studies have none
        lines.append(f"to adopt or reject: {join_ends(deciding)}")
    return lines


def describe_score(scored: Mapping[str, Any]) -> str:
    """Format the prediction written before the largest rung ran beside the measurement."""
    if scored["predicted"] is None:
        return "nothing was predicted for the largest rung"
    ends = scored["predicted90"]
    spread = "no interval" if ends is None else join_ends(ends)
    verdict = {True: "they agree within their errors", False: "they do not agree", None: "no interval to judge by"}
    measured = "-" if scored["measured"] is None else format_factor(scored["measured"])
    return (
        f"largest rung, written before it ran: m {format_factor(scored['predicted'])} ({spread}); measured {measured}: "
        f"{verdict[scored['agrees']]}"
    )


def describe_next(pair: Mapping[str, Any] | None) -> str:
    """Describe in one line the runs that would settle an undecided verdict."""
    if pair is None:
        return "next: no noise is known; a second seed of both sides at every rung comes first"
    word = "would settle it" if pair["settles"] else "would not settle it, but narrow it most"
    return (
        f"next: {pair['seeds']} further seeds of both sides at {pair['C']:.3g} FLOPs ({pair['flops']:.3g} in all) "
        f"{word}: expected at the target {join_ends(pair['interval90'])}"
    )


def join_lines(groups: Sequence[Sequence[str]]) -> list[str]:
    """Join groups of lines with an empty line between them."""
    return [line for i, group in enumerate(groups) for line in ([""] * (i > 0) + list(group))]
