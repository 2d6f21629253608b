"""`scalelab plan` of a budget on a machine as text: the answer in four lines, counts that were tried, grounds."""

from collections.abc import Sequence
from typing import Any

from scalelab.commands.plan.counts import describe_marks, mark_count
from scalelab.commands.plan.text import describe_memory_fit
from scalelab.commands.plan.verdict_text import DAY_S, GIB, describe_setup, format_figures, format_range
from scalelab.plan.memory.account_error import describe_chance
from scalelab.plan.sweep.counts import list_front


def describe_answers(answers: Sequence[Any]) -> list[str]:
    """Format the best answer, and one line for each of the others."""
    best = answers[0]
    text = [*_verdict(best), "", *_counts(best)]
    if len(answers) > 1:
        text += ["", "by machine, the best first", *map(_one_line, answers)]
    level = f" ({best.level:.0%})" if best.level else ""
    return [
        *text,
        "",
        f"law: {best.law}, {best.equation}; N counts {best.n_convention}; intervals of the law alone{level}",
        f"source: {best.source}",
        *(f"note: {note}" for note in (*best.notes, *best.plan.notes)),
        f"again, with memory, sources and assumptions: {best.command}",
    ]


def _verdict(answer: Any) -> list[str]:
    plan, shape, t = answer.plan, answer.shape, answer.plan.time
    return [
        _one_line(answer),
        f"model: {answer.n:.4g} parameters x {answer.d:.4g} tokens, d_model={shape.d_model} n_layers={shape.n_layers} "
        f"n_heads={shape.n_heads} vocab_size={shape.vocab_size} seq_len={shape.seq_len}; {shape.rule}",
        f"{describe_setup(plan)}; step {format_range(t.total_s, t.low_s, t.high_s)}, MFU {t.mfu:.1%} "
        f"({t.mfu_low:.1%} to {t.mfu_high:.1%}), {describe_memory_fit(plan.memory.fits, plan.memory.margin_bytes)}"
        + (f", {chance}" if (chance := describe_chance(plan.memory)) else ""),
        _loss(answer),
    ]


def _one_line(answer: Any) -> str:
    """Format machine, days, device-hours and cost."""
    run = answer.plan.training
    cost = "" if run.cost is None else f", cost {_money(run.cost)} ({_money(run.cost_low)} to {_money(run.cost_high)})"
    days = format_range(run.days * DAY_S, run.days_low * DAY_S, run.days_high * DAY_S)
    machine = f"{answer.plan.devices:,} x {answer.plan.machine.chip.name}"
    return f"{machine}: {days}, {run.device_hours:,.0f} device-hours{cost}"


def _money(amount: float) -> str:
    """Format to a whole unit from 1,000 on, and to cents below."""
    return f"{amount:,.0f}" if amount >= 1000 else f"{amount:.2f}"


def _loss(answer: Any) -> str:
    if answer.loss is None:
        return f"loss: law {answer.law} gives none"
    interval = answer.loss_interval
    ends = "no interval is published"
    if interval is not None and answer.level:
        low, high = ("…" if end is None else f"{end:.4f}" for end in interval)
        ends = f"{low} to {high}, {answer.level:.0%}"
    best = "" if answer.best_loss is None else f"; the best split of {answer.flops:.3g} FLOPs: {answer.best_loss:.4f}"
    return f"expected loss {answer.loss:.4f} nats a token ({ends}) by {answer.law}{best}"


def _counts(answer: Any) -> list[str]:
    """Format the counts that were tried, by number of devices; the pick is marked."""
    price, pick = answer.plan.machine.price_per_hour, answer.plan.devices
    front = list_front({each.devices: (each.device_hours, each.days, -each.margin_bytes) for each in answer.counts})
    head = f"  {'devices':>8} {'step, s':>9} {'days':>9} {'device-hours':>13}" + f" {'cost':>12}" * (price is not None)
    rows = []
    for count in answer.counts:
        cost = "" if price is None else f" {count.device_hours * price:>12,.0f}"
        mark = mark_count(count.devices, pick, front)
        figures = f"{count.devices:>8,} {count.step_s:>9.4g} {count.days:>9.4g} {count.device_hours:>13,.0f}"
        rows.append(f"{mark}{figures}{cost} {format_figures(count.margin_bytes / GIB):>10}")
    return [f"{head} {'spare GiB':>10}", *rows, describe_marks(pick, front)]
