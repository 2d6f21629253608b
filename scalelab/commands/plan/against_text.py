"""`scalelab plan --against=…` as text: the verdict, what was changed, and every figure of both plans."""

from typing import Any

from scalelab.commands.plan.text import describe_memory_fit, format_duration, format_figures
from scalelab.commands.plan.verdict_text import DAY_S, describe_setup


def describe_comparison(comparison: Any) -> list[str]:
    """Format a `PlanComparison`: the verdict, the changed keys, and a table."""
    changes = ", ".join(f"{key} {_value(one)} -> {_value(other)}" for key, (one, other) in comparison.changes.items())
    rows = [
        f"{figure.name:<30} {_number(figure.first):>14} {_number(figure.second):>14} {_ratio(figure.ratio):>14}"
        for figure in comparison.figures
        if (figure.first, figure.second) != (None, None)
    ]
    head = f"{'':<30} {'first':>14} {'second':>14} {'second / first':>14}"
    plans = {"first": comparison.first, "second": comparison.second}
    meant = [
        f"{name} {describe_setup(plan.meant)}" for name, plan in plans.items() if plan.meant and plan.meant is not plan
    ]
    return [_verdict(comparison), f"changed: {changes or 'nothing'}", *meant, "", head, *rows]


def _verdict(comparison: Any) -> str:
    plans = {"first": comparison.first, "second": comparison.second}
    stopped = [name for name, plan in plans.items() if not plan.meant]
    if stopped:
        lines = [f"the {name} cannot run: {_reason(plans[name])}" for name in stopped]
        lines += [f"the {name} takes {_describe(plan.meant)}" for name, plan in plans.items() if name not in stopped]
        return "; ".join(lines)
    first, second = (plan.meant.training.device_hours for plan in plans.values())
    more = "less" if second < first else "more"
    times = max(first, second) / min(first, second)
    replaced = [
        f"; the {name} as asked can't run ({_reason(plan)}): its nearest that does"
        for name, plan in plans.items()
        if not plan.runs
    ]
    return (
        f"the second takes {format_figures(times)} times {more} device-hours: {_describe(plans['second'].meant)}, "
        f"against {_describe(plans['first'].meant)}{''.join(replaced)}"
    )


def _reason(plan: Any) -> str:
    if plan.refusal:
        return f"the trainer refuses this: {plan.refusal}"
    if plan.memory.fits:
        return "the host does not hold its moments"
    return describe_memory_fit(plan.memory.fits, plan.memory.margin_bytes)


def _describe(plan: Any) -> str:
    cost = "" if plan.training.cost is None else f" at a cost of {format_figures(plan.training.cost)}"
    return f"{format_duration(plan.training.days * DAY_S)}{cost}"


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else format_figures(value) if abs(value) < 1e7 else f"{value:.4g}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3g}"
