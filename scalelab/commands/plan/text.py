"""`scalelab plan --config=…` as text: one section per question, every figure with its unit."""

from collections.abc import Mapping
from typing import Any

from scalelab.commands.plan import verdict_text
from scalelab.commands.plan.verdict_text import format_duration, format_figures, time_unit
from scalelab.hardware.host_memory import LIMIT_VARIABLE
from scalelab.plan.compiled.compile import compare_components

GIB, MIB = 2**30, 2**20
N_CONVENTIONS = ("total", "active", "non_embedding", "kaplan", "chinchilla")


def describe_plan(
    plan: Any, command: verdict_text.Command = verdict_text.plan_options, why: bool = False, served: bool = False
) -> list[str]:
    """Format a `scalelab.plan.Plan`: the verdict in four lines, then memory, time, batch and advice.

    `command`: a command line from a plan and changed keys. `why`: conventions, sources and saves; `served`: serving.
    No time is printed of a plan that can't run, but the nearest that can.
    """
    text, meant = verdict_text.describe_verdict(plan, command), plan.meant
    sections = [_arithmetic(plan, why), _memory(plan, "" if meant is plan else "as asked, ")]
    if meant and meant is not plan:
        sections.append(_memory(meant, "of the plan that is meant, "))
    if meant:
        sections += [_time(meant, why), _batch(meant, why)]
    if meant and why:
        sections.append(_saves(meant))
    if served:
        sections.append(_served(plan))
    sections.append(_advice(plan))
    if plan.compiled:
        sections.append(_compiled(plan))
    text += [line for section in sections if section for line in ("", *section)]
    return [*text, *(("", *(f"note: {note}" for note in plan.notes)) if plan.notes else ())]


def _arithmetic(plan: Any, why: bool) -> list[str]:
    flops = plan.flops
    head = f"over {plan.tokens:.4g} tokens, {plan.steps:,} steps"
    if not why:
        exact = flops.per_token["exact"] * plan.tokens
        return [f"parameters {describe_sizes(flops.parameters)}; training FLOPs {exact:.4g} {head}"]
    groups = {name: n for name, n in flops.parameters.items() if name not in N_CONVENTIONS}
    text = [
        "parameters  " + "  ".join(f"{name} {flops.parameters[name]:,}" for name in N_CONVENTIONS),
        "  by group  " + "  ".join(f"{name} {n:,}" for name, n in groups.items()),
        f"{'training FLOPs':<16} {'a token':>12} {'with remat':>12} {'in all':>12}   {head}",
    ]
    for name, each in flops.per_token.items():
        text.append(f"  {name:<14} {each:>12.4g} {flops.remat_per_token[name]:>12.4g} {each * plan.tokens:>12.4g}")
    return text


def describe_sizes(parameters: Mapping[str, int]) -> str:
    """Format the total, and what a token uses if that is less."""
    total, active = parameters["total"], parameters["active"]
    return f"{total:,}" + (f", {active:,} active" if active < total else "")


def _memory(plan: Any, whose: str = "") -> list[str]:
    memory = plan.memory
    name, size = memory_unit(memory.total)
    text = [f"memory of the fullest device, {whose}{name} (remat: {plan.static.model.remat})"]
    text += [f"  {part:<14} {n_bytes / size:>10.3f}" for part, n_bytes in memory.components.items()]
    text.append(
        f"  {'total':<14} {memory.total / size:>10.3f} of {memory.capacity / size:,.1f}: "
        f"{describe_memory_fit(memory.fits, memory.margin_bytes, (name, size))}"
    )
    text.append(f"  activations by Korthikanti's formula {memory.formula_bytes / size:.3f}")
    return [*text, *_host_memory(plan)]


def _host_memory(plan: Any) -> list[str]:
    """Format the part of the host's memory that the moments take; a node's devices share that memory."""
    host = plan.host
    if host is None:
        return []
    of = "not known for this machine; host_bytes of a machine file states it"
    if host.capacity is not None:
        fit = describe_memory_fit(host.fits, host.capacity - host.total)
        of = f"{host.capacity / GIB:,.1f} GiB that {plan.machine.devices_per_node} devices share: {fit}"
    pool = (
        [f"  {'moments, pool':<14} {host.pool_bytes / GIB:>10.3f}  at most ({LIMIT_VARIABLE}, which `train` sets)"]
        if host.pool_bytes > host.moments_bytes
        else []
    )
    return [
        "memory of the host, GiB",
        f"  {'moments':<14} {host.moments_bytes / GIB:>10.3f}",
        *pool,
        f"  {'a save':<14} {host.save_bytes / GIB:>10.3f}  the copy of the state that is written",
        f"  {'total':<14} {host.total / GIB:>10.3f} of {of}",
    ]


def memory_unit(total_bytes: int) -> tuple[str, int]:
    """(name, bytes) of the unit to print sizes in: GiB, or MiB up to 0.1 GiB."""
    return ("GiB", GIB) if total_bytes > GIB / 10 else ("MiB", MIB)


def describe_memory_fit(fits: bool, margin_bytes: int, unit: tuple[str, int] = ("GiB", GIB)) -> str:
    """Format as "fits, 3.2 GiB to spare" or "does not fit, 1.1 GiB too much"."""
    size = f"{format_figures(abs(margin_bytes) / unit[1])} {unit[0]}"
    return f"fits, {size} to spare" if fits else f"does not fit, {size} too much"


def _time(plan: Any, why: bool) -> list[str]:
    t = plan.time
    name, unit = time_unit(t.total_s)
    parts = (
        {"compute": t.compute_s, "hbm": t.hbm_s}
        | {f"{axis} (exposed)": s for axis, s in t.exposed.items()}
        | {"bubble": t.bubble_s}
    )
    text = [f"time of a step, {name}"]
    text += [f"  {part:<18} {format_figures(seconds / unit):>8}" for part, seconds in parts.items() if seconds]
    text += [
        f"  {'total':<18} {format_figures(t.total_s / unit):>8}  ({format_figures(t.low_s / unit)} to "
        f"{format_figures(t.high_s / unit)}), {t.tokens_per_s:,.0f} tokens/s",
        *(f"  {line}" for line in t.assumptions if why or line.startswith("experts")),
    ]
    savings = dict(plan.savings)
    if plan.narrower:
        words = "16 bits, which change the numbers of the training: --config.precision.name=bf16"
        savings = {words: t.total_s - plan.narrower.plan.time.total_s} | savings
    return text + [f"  would save {format_figures(saved / unit)}: {trait}" for trait, saved in savings.items()]


def _batch(plan: Any, why: bool) -> list[str]:
    b = plan.batch
    text = [
        f"batch {b.tokens:,} tokens: {b.rows_per_device:g} sequences a device x {b.data_parallel} data parallel x "
        f"{b.microbatches} micro-batches x {b.accumulate} accumulated"
    ]
    text += [
        f"  {c.ratio:.3g} of a critical batch of {c.tokens:,.0f} tokens ({c.name}): "
        f"about {c.extra_tokens:.1%} more tokens; {c.source}"
        for c in b.critical
        if why
    ]
    return [*text, *(f"  {note}" for note in b.notes if why)]


def _saves(plan: Any) -> list[str]:
    c = plan.checkpoint
    every = format_duration(c.every_s) + (f" ({c.every_steps:,} steps)" if c.every_steps else "")
    return [
        f"a save: {c.bytes / GIB:,.4g} GiB, {format_duration(c.seconds)}, of which steps wait "
        f"{format_duration(c.blocked_s)}; a failure every {format_duration(c.mtbf_s)}",
        f"save every {every}: Young {format_duration(c.young_s)}, Daly {format_duration(c.daly_s)}; "
        f"goodput {c.goodput:.1%} (simulated {c.simulated:.1%}, {c.goodput_low:.1%} to {c.goodput_high:.1%}), "
        f"{format_duration(c.lost_work_s)} of work lost a failure",
        *(f"  {note}" for note in c.notes),
    ]


def _advice(plan: Any) -> list[str]:
    """Format the ranked changes, or why there are none; without a share of the time of a plan that can't run."""
    if not plan.advice:
        return ["advice: no change that was tried is faster and fits"] if plan.runs else []
    if not any(change.fits for change in plan.advice):
        text = ["advice: nothing fits on as many devices as it is; least is lacking with"]
        return text + [
            f"  {describe_memory_fit(False, change.margin_bytes)}: {verdict_text.list_options(change.changes)}"
            for change in plan.advice
        ]
    ramp = "" if plan.meant is plan or not plan.runs else ", with the batch's warm-up"
    text = [f"advice: the same model and batch on as many devices{ramp}, by predicted step time"]
    name, unit = time_unit(plan.advice[0].step_s)
    for change in plan.advice:
        share = f" ({change.of_plan:.2f} of this)" if plan.meant is plan else ""
        fit = describe_memory_fit(change.fits, change.margin_bytes)
        seconds, changes = format_figures(change.step_s / unit), verdict_text.list_options(change.changes)
        text.append(f"  {seconds} {name}{share}, {fit}: {changes}")
    return text


def _compiled(plan: Any) -> list[str]:
    """Format the memory by formula, exact and compiled, side by side."""
    compiled, (name, size) = plan.compiled, memory_unit(plan.memory.total)
    head = f"compiled for {compiled.platform} in {compiled.seconds:.1f} s"
    text = [f"{head}: out of memory", compiled.oom] if compiled.oom else [head]
    if not compiled.peak_bytes:
        return text

    def cell(n_bytes: int | None) -> str:
        return "-" if n_bytes is None else f"{n_bytes / size:.3f}"

    text.append(f"  {name:<14} {'formula':>10} {'exact':>10} {'compiled':>10} {'compiled - exact':>17}")
    for row in compare_components(plan.memory, compiled):
        cells = [cell(n_bytes) for n_bytes in (row.formula_bytes, row.exact_bytes, row.compiled_bytes)]
        text.append(
            f"  {row.component:<14} " + " ".join(f"{each:>10}" for each in cells) + f" {cell(row.difference_bytes):>17}"
        )
    return [*text, *([compiled.note] if compiled.note else [])]


def format_measurement(point: Any) -> str:
    """Format one measured micro-batch size."""
    rates = f"{point.tokens_per_s:>12,.0f} {point.predicted_tokens_per_s:>12,.0f}"
    return f"{point.rows:>6} {rates} {point.step_s:>8.3g} s {point.compile_s:>8.3g} s"


def describe_knee(measured: Any) -> str:
    """Describe from which size more rows add no speed, and why no larger size was measured."""
    knee = f"{measured.knee_rows} sequences a device reach 95 % of the best rate"
    result = "nothing was measured" if measured.knee_rows is None else knee
    return f"{result}; {measured.stopped} ({measured.devices} x {measured.device})"


def _served(plan: Any) -> list[str]:
    """Format the memory of one device in training and in serving, side by side."""
    components, serving = plan.memory.components, plan.inference
    training = {
        "weights": sum(
            components.get(name, 0) for name in ("parameters", "master", "copies", "gradients", "optimizer", "average")
        ),
        "kv_cache": 0,
        "activations": sum(components[name] for name in ("activations", "logits", "temporary", "batch")),
    }
    name, size = memory_unit(max(plan.memory.total, serving.total))
    where = f"{serving.batch} sequences of {serving.context:,} tokens on one device"
    text = [
        f"{f'{name} of a device':<20} {'training':>10} {'serving':>10}   "
        f"training's weights with gradients and optimizer; {where}"
    ]
    for name, n_bytes in serving.components.items():
        text.append(f"  {name:<18} {training[name] / size:>10.3f} {n_bytes / size:>10.3f}")
    text.append(
        f"  {'total':<18} {plan.memory.total / size:>10.3f} {serving.total / size:>10.3f}   "
        f"{describe_memory_fit(serving.fits, serving.margin_bytes)}"
    )
    text.append(
        f"  {serving.kv_bytes_per_token:,} bytes of keys and values a token; "
        f"room for {serving.most_sequences:,} such sequences"
    )
    return [*text, *(f"  {note}" for note in serving.notes)]


def describe_single_gpu(fits: Any, trainable: Any) -> list[str]:
    """Format the ways to hold the model on one device with their largest micro-batches, then this trainer's own."""
    text = [f"{'on one device: weights':<24} {'per layer':>10} {'remat':>6} {'rows':>6} {'GiB':>8}"]
    for fit in fits:
        update = "yes" if fit.per_layer else "no"
        size = f"{fit.memory.total / GIB:>8.2f}" + (
            "" if fit.rows else f"  {describe_memory_fit(False, fit.memory.margin_bytes)} with one"
        )
        text.append(f"  {fit.weights:<22} {update:>10} {fit.remat:>6} {fit.rows:>6} {size}")
    text.append("this trainer has steps for these changes, nearest first; the table's bfloat16 is GaLore's way:")
    text += [f"  {verdict_text.list_options(option.changes) or 'the config as it is'}" for option in trainable]
    return text if trainable else [*text, "  nothing that was tried fits"]


def describe_calibration(calibration: Any) -> list[str]:
    """Describe the efficiencies that measured runs give."""
    return [
        f"calibrated by {len(calibration.runs)} programs: measured / predicted tokens/s {calibration.factor:.3g}; "
        f"the next program is expected within {calibration.low:.2f} to {calibration.high:.2f} of its new prediction",
        *calibration.notes,
    ]
