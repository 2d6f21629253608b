"""`scalelab plan` of a budget (--flops=…, --tokens=…, …) and of a sweep (--sweep) as text."""

from typing import Any

from scalelab.commands.plan.text import MIB, format_duration

FIGURE_LABELS = {
    "n": "parameters",
    "d": "tokens",
    "loss": "loss, nats/token",
    "flops": "FLOPs",
    "tokens_per_parameter": "tokens a parameter",
}


def describe_budget(allocation: Any) -> list[str]:
    """Format an `Allocation`: one figure with its interval per line, then their law and its source."""
    rows = [
        _row(text, getattr(allocation, name), allocation.intervals.get(name)) for name, text in FIGURE_LABELS.items()
    ]
    if serving := allocation.serving:
        rows.append(
            f"with {serving.tokens:.3g} tokens served: {serving.total_flops:.3g} FLOPs in all, "
            f"{serving.saved:.1%} less than {serving.plain_n:.3g} parameters on {serving.plain_d:.3g} tokens, "
            f"at the same loss"
        )
    if repetition := allocation.repetition:
        rows.append(
            f"{repetition.epochs:.3g} epochs over {repetition.unique_tokens:.3g} tokens, "
            f"worth {repetition.worth_tokens:.3g} fresh ones; {repetition.not_identified}"
        )
    return [*rows, *_grounds(allocation)]


def describe_overtraining(run: Any) -> list[str]:
    """Format an `Overtraining`: the run beside the best split of its compute."""
    lines = [
        f"{'':<22} {'the run':>12} {'best':>12}  of {run.flops:.3g} FLOPs",
        f"{'parameters':<22} {run.params:>12.4g} {run.n:>12.4g}  {_interval(run.intervals.get('n'))}",
        f"{'tokens':<22} {run.tokens:>12.4g} {run.d:>12.4g}  {_interval(run.intervals.get('d'))}",
        f"{'tokens a parameter':<22} {run.tokens_per_parameter:>12.4g} {run.best_tokens_per_parameter:>12.4g}",
    ]
    if run.loss is not None and run.best_loss is not None:
        lines.append(f"{'loss, nats/token':<22} {run.loss:>12.4f} {run.best_loss:>12.4f}")
    times = f"{run.factor:.3g} times the best tokens a parameter"
    lines.append(f"{run.verdict}: {times} {_interval(run.intervals.get('factor'))}".rstrip())
    if run.loss_given_away is not None:
        wasted = "" if run.waste is None else f"; the best split needs {run.waste:.1%} fewer FLOPs for this loss"
        lines.append(
            f"loss given away {run.loss_given_away:.4f} {_interval(run.intervals.get('loss_given_away'))}".rstrip()
            + wasted
        )
    return [*lines, *_grounds(run)]


def describe_sweep(plan: Any) -> list[str]:
    """Format a `SweepPlan`: one line per run, the sums, and the parameters that a fit of the runs should give."""
    width = max(len(run.name) for run in plan.runs)
    text = [f"{'run':<{width}} {'role':<8} {'N':>10} {'D':>10} {'FLOPs':>10} {'MiB':>9} {'takes':>9}  pack"]
    for run in plan.runs:
        sizes = f"{run.n:>10.4g} {run.d:>10.4g} {run.flops:>10.4g}"
        needs = f"{run.memory_bytes / MIB:>9,.1f} {format_duration(run.hours * 3600):>9}"
        line = f"{run.name:<{width}} {run.role or '-':<8} {sizes} {needs}  {run.pack}"
        text.append(line if run.fits else f"{line}  does not fit")
    cost = "" if plan.cost is None else f", cost {plan.cost:,.4g}"
    text += [
        f"{len(plan.runs)} runs in {len(plan.packs)} packs: {plan.tokens:.4g} tokens, {plan.flops:.4g} FLOPs, "
        f"{plan.device_hours:.3g} device-hours ({plan.device_hours_low:.3g} to {plan.device_hours_high:.3g}), "
        f"{format_duration(plan.wall_hours * 3600)} on {plan.machine}, without compiling and reading{cost}",
        f"the largest run takes {plan.largest_bytes / MIB:,.0f} of {plan.capacity_bytes / MIB:,.0f} MiB",
    ]
    return [*text, *_forecast(plan.forecast), *plan.notes]


def _forecast(forecast: Any) -> list[str]:
    if forecast is None:
        return []
    rows = [f"  {row.name:<8} {row.value:>12.4g}  ({row.low:.4g} to {row.high:.4g})" for row in forecast.expected]
    return [
        f"expected from a fit ({forecast.level:.0%}), if {forecast.law} is true and losses scatter by "
        f"{forecast.noise:.2%}:",
        *rows,
        *forecast.findings,
    ]


def _grounds(answer: Any) -> list[str]:
    level = f" ({answer.level:.0%})" if answer.level else ""
    law = f"law: {answer.law}, {answer.equation}; N counts {answer.n_convention}"
    return [law, f"source: {answer.source}", f"intervals{level}: {answer.interval}", *answer.notes]


def _row(name: str, value: float | None, interval: Any) -> str:
    shown = "-" if value is None else f"{value:.4g}"
    return f"{name:<22} {shown:>12}  {_interval(interval)}".rstrip()


def _interval(interval: Any) -> str:
    if interval is None:
        return ""
    low, high = ("…" if end is None else f"{end:.4g}" for end in interval)
    return f"({low} to {high})" if low != high else ""  # equal ends mean that the value was given, not fitted
