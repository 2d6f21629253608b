"""`scalelab plan --flops=…` and its kind as text."""

from typing import Any

NAMES = {"n": "parameters", "d": "tokens", "loss": "loss, nats/token", "flops": "FLOPs", "tokens_per_parameter": "tokens a parameter"}


def of_a_budget(found: Any) -> list[str]:
    """An `Allocation`: a figure a line with its interval, then what it rests on."""
    rows = [_row(text, getattr(found, name), found.intervals.get(name)) for name, text in NAMES.items()]
    if s := found.serving:
        rows.append(
            f"with {s.tokens:.3g} tokens served: {s.total_flops:.3g} FLOPs in all, {s.saved:.1%} less than {s.plain_n:.3g} parameters "
            f"on {s.plain_d:.3g} tokens, at the same loss"
        )
    if r := found.repetition:
        rows.append(f"{r.epochs:.3g} epochs over {r.unique_tokens:.3g} tokens, worth {r.worth_tokens:.3g} fresh ones; {r.not_identified}")
    return [*rows, *_grounds(found)]


def of_a_run(found: Any) -> list[str]:
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
        lines.append(f"loss given away {found.loss_given_away:.4f} {_interval(found.intervals.get('loss_given_away'))}".rstrip() + wasted)
    return [*lines, *_grounds(found)]


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
