"""`scalelab plan --flops=…` and its kind, and `--sweep`, as text."""

from typing import Any

from scalelab.commands.plan.text import MIB, format_duration

FIGURE_LABELS = {
    "n": "parameters",
    "d": "tokens",
    "loss": "loss, nats/token",
    "flops": "FLOPs",
    "tokens_per_parameter": "tokens a parameter",
}


def describe_budget(found: Any) -> list[str]:
    """An `Allocation`: a figure a line with its interval, then what it rests on."""
    rows = [_row(text, getattr(found, name), found.intervals.get(name)) for name, text in FIGURE_LABELS.items()]
    if s := found.serving:
        rows.append(
            f"with {s.tokens:.3g} tokens served: {s.total_flops:.3g} FLOPs in all, {s.saved:.1%} less than {s.plain_n:.3g} parameters "
            f"on {s.plain_d:.3g} tokens, at the same loss"
        )
    if r := found.repetition:
        rows.append(
            f"{r.epochs:.3g} epochs over {r.unique_tokens:.3g} tokens, worth {r.worth_tokens:.3g} fresh ones; {r.not_identified}"
        )
    return [*rows, *_grounds(found)]


def describe_overtraining(found: Any) -> list[str]:
    """An `Overtraining`: the run beside the best split of its compute."""
    lines = [
        f"{'':<22} {'the run':>12} {'best':>12}  of {found.flops:.3g} FLOPs",
        f"{'parameters':<22} {found.params:>12.4g} {found.n:>12.4g}  {_interval(found.intervals.get('n'))}",
        f"{'tokens':<22} {found.tokens:>12.4g} {found.d:>12.4g}  {_interval(found.intervals.get('d'))}",
        f"{'tokens a parameter':<22} {found.tokens_per_parameter:>12.4g} {found.best_tokens_per_parameter:>12.4g}",
    ]
    if found.loss is not None and found.best_loss is not None:
        lines.append(f"{'loss, nats/token':<22} {found.loss:>12.4f} {found.best_loss:>12.4f}")
    times = f"{found.factor:.3g} times the best tokens a parameter"
    lines.append(f"{found.verdict}: {times} {_interval(found.intervals.get('factor'))}".rstrip())
    if found.loss_given_away is not None:
        wasted = "" if found.waste is None else f"; the best split needs {found.waste:.1%} fewer FLOPs for this loss"
        lines.append(
            f"loss given away {found.loss_given_away:.4f} {_interval(found.intervals.get('loss_given_away'))}".rstrip()
            + wasted
        )
    return [*lines, *_grounds(found)]


def describe_sweep(found: Any) -> list[str]:
    """A `SweepPlan`: a line a run, the sums, and what a fit of them is expected to tell."""
    width = max(len(run.name) for run in found.runs)
    text = [f"{'run':<{width}} {'role':<8} {'N':>10} {'D':>10} {'FLOPs':>10} {'MiB':>9} {'takes':>9}  pack"]
    for run in found.runs:
        numbers = f"{run.n:>10.4g} {run.d:>10.4g} {run.flops:>10.4g} {run.memory_bytes / MIB:>9,.1f} {format_duration(run.hours * 3600):>9}"
        line = f"{run.name:<{width}} {run.role or '-':<8} {numbers}  {run.pack}"
        text.append(line if run.fits else f"{line}  does not fit")
    cost = "" if found.cost is None else f", cost {found.cost:,.4g}"
    text += [
        f"{len(found.runs)} runs in {len(found.packs)} packs: {found.tokens:.4g} tokens, {found.flops:.4g} FLOPs, {found.device_hours:.3g} "
        f"device-hours ({found.device_hours_low:.3g} to {found.device_hours_high:.3g}), {format_duration(found.wall_hours * 3600)} on "
        f"{found.machine}, compiling and reading left out{cost}",
        f"the hungriest takes {found.largest_bytes / MIB:,.0f} of {found.capacity_bytes / MIB:,.0f} MiB",
    ]
    return [*text, *_forecast(found.forecast), *found.notes]


def _forecast(expected: Any) -> list[str]:
    if expected is None:
        return []
    rows = [f"  {row.name:<8} {row.value:>12.4g}  ({row.low:.4g} to {row.high:.4g})" for row in expected.expected]
    return [
        f"what a fit is expected to tell ({expected.level:.0%}), if {expected.law} is true and losses scatter by {expected.noise:.2%}:",
        *rows,
        *expected.findings,
    ]


def _grounds(found: Any) -> list[str]:
    level = f" ({found.level:.0%})" if found.level else ""
    return [
        f"law: {found.law}, {found.equation}; N counts {found.n_convention}",
        f"source: {found.source}",
        f"intervals{level}: {found.interval}",
        *found.notes,
    ]


def _row(name: str, value: float | None, interval: Any) -> str:
    shown = "-" if value is None else f"{value:.4g}"
    return f"{name:<22} {shown:>12}  {_interval(interval)}".rstrip()


def _interval(interval: Any) -> str:
    if interval is None:
        return ""
    low, high = ("…" if end is None else f"{end:.4g}" for end in interval)
    return f"({low} to {high})" if low != high else ""  # given, not found
