"""The first four lines of `scalelab plan --config=…`: does it fit, which plan is meant, how long, what to change."""

import dataclasses
import shlex
import types
from collections.abc import Callable, Mapping
from typing import Any

from scalelab.hardware.power import board_watts
from scalelab.parallel import mesh
from scalelab.plan.memory.account_error import describe_chance
from scalelab.plan.search.nearest import keys_that_alter
from scalelab.plan.step.operations import attention_kind

GIB = 2**30
KEPT_OPTIONS = (  # of the command line that is printed to be pasted; what it prints further stays a choice
    "config", "hardware", "devices", "price", "calibrate", "critical_batch", "mtbf_hours", "restart_minutes",
    "write_gb_per_s", "serve_batch", "serve_context",
)  # fmt: skip
Command = Callable[[Any, Mapping[str, Any]], str]  # a command line, from a plan and the config keys that it changes
DAY_S = 86_400.0
TIME_UNITS = (("days", DAY_S), ("hours", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))


def describe_verdict(plan: Any, command: Command) -> list[str]:
    """Format the verdict on a `scalelab.plan.Plan`; `command` makes a command line from a plan and changed keys."""
    return [*_describe_answer(plan, command), *describe_even(plan, command)]


def _describe_answer(plan: Any, command: Command) -> list[str]:
    meant, lead = plan.meant, plan.lead
    subject = _subject(plan)
    if meant is None:
        return _describe_hopeless(plan, subject, command)
    if lead is None:
        filled = [f"paste: {command(plan, plan.filled)}"] if plan.filled else []
        altered = ", ".join(keys_that_alter(plan.filled or ()))
        fit = describe_fit(plan) + (f"; it changes the numbers of the training: {altered}" if altered else "")
        return [fit, describe_setup(plan), describe_run(plan), *filled, _describe_faster(plan, command)]
    alters = f"; it changes the numbers of the training: {', '.join(lead.alters)}" if lead.alters else ""
    if plan.runs:
        first = f"{describe_fit(meant)}, without the batch's warm-up{alters}"
    else:
        fewer = f" on {meant.devices:,} of them" if meant.devices < plan.devices else ""
        first = f"{_problem(plan, subject)}; nearest that fits{fewer}{alters}:"
    paste = command(meant, lead.changes)
    return [first, describe_setup(meant), describe_run(meant), f"paste: {paste}", *_describe_pinned(plan, command)]


def _subject(plan: Any) -> str:
    total, active = (plan.flops.parameters[name] for name in ("total", "active"))
    size = f"{total:.3g} parameters" + (f" ({active:.3g} active)" if active < total else "")
    return f"{size} on {plan.devices:,} x {plan.machine.chip.name}"


def describe_fit(plan: Any) -> str:
    """Format that a plan fits, and how likely it runs out of memory all the same."""
    memory, subject = plan.memory, _subject(plan)
    chance = describe_chance(memory)
    return f"fits: {subject}, {_gib(memory.total)} of {_gib(memory.capacity)} GiB a device" + (chance and f"; {chance}")


def _describe_hopeless(plan: Any, subject: str, command: Command) -> list[str]:
    """Format the verdict where nothing that was tried fits on so many devices."""
    least = max(plan.advice, key=lambda change: change.margin_bytes, default=None)
    text = [f"{_problem(plan, subject)}; nothing that was tried fits on so many"]
    if least:
        text.append(f"least is lacking, {_gib(-least.margin_bytes)} GiB, with: {list_options(least.changes)}")
    more = f"it fits from {plan.fits_from:,} devices on" if plan.fits_from else "it fits on no number that was tried"
    on = types.SimpleNamespace(devices=plan.fits_from)
    paste = [f"paste: {command(on, plan.fits_with)}"] if plan.fits_from else []
    return [*text, f"{more} (of powers of two times {plan.devices:,})", *paste]


def _problem(plan: Any, subject: str) -> str:
    """Why a plan can't run."""
    if plan.refusal:
        return f"refused: {plan.refusal}"
    memory, host = plan.memory, plan.host
    if not memory.fits:
        chance = describe_chance(memory)
        size = f"{_gib(memory.total)} of {_gib(memory.capacity)} GiB a device"
        return f"does not fit: {subject} as asked, {size}" + (chance and f" ({chance})")
    return f"does not fit: {subject} as asked, {_gib(host.total)} of {_gib(host.capacity)} GiB of the host"


def describe_setup(plan: Any) -> str:
    """Format mesh, remat, batch, updates, moments, formats and the kernel of attention of a plan."""
    static, batch = plan.static, plan.batch
    stages = f" x {batch.microbatches} micro-batches" if batch.microbatches > 1 else ""
    rows = f"{batch.rows_per_device:g} sequence{'s' * (batch.rows_per_device != 1)} a device"
    return (
        f"plan: {mesh.describe_mesh(dataclasses.asdict(plan.layout))}; remat {static.model.remat}; "
        f"{rows}{stages} x {static.accumulate} accumulated; "
        f"updates {static.updates}, moments on {static.moments}; {static.optim.name} in {static.precision}; "
        f"attention by {attention_kind(static, plan.machine)}"
    )


def describe_run(plan: Any) -> str:
    """Format step time, days, device hours, MFU, cost and energy of a plan that can run, each with its range."""
    t, run = plan.time, plan.training
    cost = "no price given (--price)"
    if run.cost is not None:
        cost = f"cost {run.cost:,.0f} ({run.cost_low:,.0f} to {run.cost_high:,.0f})"
    days = format_range(run.days * DAY_S, run.days_low * DAY_S, run.days_high * DAY_S)
    hours = f"{format_figures(run.device_hours)} ({format_figures(run.device_hours_low)} to "
    active = " of the active parameters' FLOPs" if plan.static.model.n_experts else ""
    return (
        f"time: {format_range(t.total_s, t.low_s, t.high_s)} a step, {days} in all, "
        f"{hours}{format_figures(run.device_hours_high)}) device hours, "
        f"MFU {t.mfu:.1%} ({t.mfu_low:.1%} to {t.mfu_high:.1%}){active}, {cost}{_describe_energy(plan)}"
    )


def _describe_energy(plan: Any) -> str:
    """Format the upper bound of a run's energy with its range; "" where the chip's board power is not known."""
    run = plan.training
    if run.energy_kwh is None:
        return ""
    low, high = format_figures(run.energy_kwh_low), format_figures(run.energy_kwh_high)
    return (
        f", at most {format_figures(run.energy_kwh)} kWh ({low} to {high}) at the full board power of "
        f"{board_watts(plan.machine.chip):g} W, chips alone"
    )


def _describe_faster(plan: Any, command: Command) -> str:
    """Format the fastest change of a plan that fits, or 16 bits where they are faster still."""
    if pinned := _describe_pinned(plan, command):
        return pinned[0]
    best, narrower = plan.advice[0] if plan.advice else None, plan.narrower
    if narrower and not (best and best.step_s < narrower.plan.time.total_s):
        step_s = narrower.plan.time.total_s
        words = f"in 16 bits, which changes the numbers of the training, {format_duration(step_s)}"
        return f"faster: {words} a step ({step_s / plan.time.total_s:.2f} of this): {command(plan, narrower.changes)}"
    if not best:
        return "faster: no change that was tried is faster and fits"
    return f"faster: {format_duration(best.step_s)} a step ({best.of_plan:.2f} of this): {command(plan, plan.faster)}"


def _describe_pinned(plan: Any, command: Command) -> list[str]:
    """Format what the batch's warm-up costs, where it pins the plan."""
    if not plan.unpinned:
        return []
    first = plan.batch.first_tokens // plan.static.model.seq_len
    head = (
        f"pinned: the batch's warm-up (schedule.batch_…) begins with {first:,} sequences a step, which limits the "
        "replicas; "
    )
    if plan.lead is not plan.unpinned:
        free = plan.unpinned.plan
        return [f"{head}without it {_step_and_mfu(free)}: {command(free, plan.unpinned.changes)}"]
    if not plan.runs and not plan.nearest:
        return [f"{head}nothing that was tried fits with it"]
    return [f"{head}with it {_step_and_mfu(plan if plan.runs else plan.nearest.plan)}"]


def describe_even(plan: Any, command: Command) -> list[str]:
    """Format what a batch near an odd one takes, where it is much faster."""
    if not plan.even:
        return []
    other = plan.even.plan
    rows, even_rows = (each.static.global_batch for each in (plan, other))
    share = f" ({other.training.days / plan.meant.training.days:.2f} of this)" if plan.meant else ""
    return [
        f"odd batch: few micro-batches divide {rows:,} sequences; with {even_rows:,}, for as many tokens, "
        f"{_step_and_mfu(other)}{share}; it changes the numbers of the training: {command(other, plan.even.changes)}"
    ]


def _step_and_mfu(plan: Any) -> str:
    return f"{format_duration(plan.time.total_s)} a step, {format_duration(plan.training.days * DAY_S)} in all, " + (
        f"MFU {plan.time.mfu:.1%}"
    )


def list_options(changes: Mapping[str, Any]) -> str:
    """Format changed config keys as options of a command line."""
    return " ".join(option_texts(changes))


def plan_options(plan: Any, changes: Mapping[str, Any]) -> str:
    """The changed config keys of a plan as options, without a command before them."""
    del plan
    return list_options(changes)


def option_texts(changes: Mapping[str, Any]) -> list[str]:
    """The options that set these config keys."""
    return [
        f"--config.{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in changes.items()
    ]


def command_line(options: Any, plan: Any, changes: Mapping[str, Any]) -> str:
    """The command of `plan`, of the config with these keys changed, on the mesh that they name."""
    given = {key: value for key, value in options.overrides.items() if key not in changes}
    values = {name: getattr(options, name) for name in KEPT_OPTIONS}
    if options.devices is not None:  # fewer, where the plan is of fewer
        values["devices"] = plan.devices
    words = [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value is not None]
    words += [f"--trust={code}" for code in options.trust or ()]
    words += [*option_texts(given), *option_texts(changes)]
    return shlex.join(["scalelab", "plan", *words])


def _gib(n_bytes: int) -> str:
    return format_figures(n_bytes / GIB)


def format_duration(seconds: float) -> str:
    """Format as "3.2 days", "14 min" or "24.8 ms": in the largest unit that gives a value of two or more."""
    name, unit = time_unit(seconds)
    return f"{format_figures(seconds / unit)} {name}"


def time_unit(seconds: float) -> tuple[str, float]:
    """(name, seconds) of the largest unit that gives a value of two or more."""
    return next((pair for pair in TIME_UNITS if seconds >= 2 * pair[1]), TIME_UNITS[-1])


def format_range(seconds: float, low: float, high: float) -> str:
    """Format as "12.7 s (9.82 to 16.2)", in one unit."""
    name, unit = time_unit(seconds)
    return f"{format_figures(seconds / unit)} {name} ({format_figures(low / unit)} to {format_figures(high / unit)})"


def format_figures(value: float) -> str:
    """Format with three significant digits, and with all digits before the point: 0.468, 36.2, 3,467."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
