"""`scalelab plan --config=…` as text: a section for each question, each figure with its unit."""

import dataclasses
from typing import Any

from scalelab.parallel import mesh

GIB, MIB = 2**30, 2**20
DAY_S = 86_400.0
TIME_UNITS = (("days", DAY_S), ("hours", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))
N_CONVENTIONS = ("total", "non_embedding", "kaplan", "chinchilla")


def describe_plan(plan: Any) -> list[str]:
    """Every section of a `scalelab.plan.Plan`, in the order in which one asks."""
    head = f"{plan.devices:,} x {plan.machine.chip.name}, {mesh.describe_mesh(dataclasses.asdict(plan.layout))}"
    sections = [_arithmetic(plan), _memory(plan), _time(plan), _batch(plan), _saves(plan), _served(plan), _advice(plan)]
    text = [head, *(line for section in sections for line in ("", *section))]
    if plan.compiled:
        text += ["", *_compiled(plan)]
    return [*text, *(("", *(f"note: {note}" for note in plan.notes)) if plan.notes else ())]


def _arithmetic(plan: Any) -> list[str]:
    found = plan.flops
    groups = {name: n for name, n in found.parameters.items() if name not in N_CONVENTIONS}
    text = [
        "parameters  " + "  ".join(f"{name} {found.parameters[name]:,}" for name in N_CONVENTIONS),
        "  by group  " + "  ".join(f"{name} {n:,}" for name, n in groups.items()),
        f"{'training FLOPs':<16} {'a token':>12} {'with remat':>12} {'in all':>12}   over {plan.tokens:.4g} tokens, {plan.steps:,} steps",
    ]
    for name, each in found.per_token.items():
        text.append(f"  {name:<14} {each:>12.4g} {found.remat_per_token[name]:>12.4g} {each * plan.tokens:>12.4g}")
    return text


def _memory(plan: Any) -> list[str]:
    m = plan.memory
    name, size = memory_unit(m.total)
    text = [f"memory of the fullest device, {name} (remat: {plan.flops.remat})"]
    text += [f"  {name:<14} {each / size:>10.3f}" for name, each in m.components.items()]
    text.append(
        f"  {'total':<14} {m.total / size:>10.3f} of {m.capacity / size:,.1f}: {describe_memory_fit(m.fits, m.margin_bytes)}"
    )
    text.append(f"  activations by Korthikanti's formula {m.formula_bytes / size:.3f}")
    return text


def memory_unit(total_bytes: int) -> tuple[str, int]:
    """GiB, or MiB where that says more."""
    return ("GiB", GIB) if total_bytes > GIB / 10 else ("MiB", MIB)


def format_duration(seconds: float) -> str:
    """ "3.2 days", "14 min", "24.8 ms": in the largest unit of which there are two."""
    name, unit = next((pair for pair in TIME_UNITS if seconds >= 2 * pair[1]), TIME_UNITS[-1])
    return f"{format_figures(seconds / unit)} {name}"


def format_figures(value: float) -> str:
    """Three figures, and all of those before the point: 0.468, 36.2, 3,467."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def describe_memory_fit(fits: bool, margin_bytes: int) -> str:
    """ "fits, 3.2 GiB to spare" or "does not fit, 1.1 GiB too much"."""
    size = f"{format_figures(abs(margin_bytes) / GIB)} GiB"
    return f"fits, {size} to spare" if fits else f"does not fit, {size} too much"


def _time(plan: Any) -> list[str]:
    t, run = plan.time, plan.training
    parts = (
        {"compute": t.compute_s, "hbm": t.hbm_s}
        | {f"{axis} (exposed)": s for axis, s in t.exposed.items()}
        | {"bubble": t.bubble_s}
    )
    cost = "" if run.cost is None else f", cost {run.cost:,.0f} ({run.cost_low:,.0f} to {run.cost_high:,.0f})"
    return [
        f"step {format_duration(t.total_s)} ({format_duration(t.low_s)} to {format_duration(t.high_s)}): "
        + ", ".join(f"{n} {format_duration(s)}" for n, s in parts.items() if s),
        f"MFU {t.mfu:.1%} ({t.mfu_low:.1%} to {t.mfu_high:.1%}), {t.tokens_per_s:,.0f} tokens/s",
        f"the run: {format_duration(run.days * DAY_S)} ({format_duration(run.days_low * DAY_S)} to {format_duration(run.days_high * DAY_S)}), {run.device_hours:,.4g} "
        f"device-hours ({run.device_hours_low:,.4g} to {run.device_hours_high:,.4g}){cost}",
        *(f"  {line}" for line in t.assumptions),
        *(f"  would save {format_duration(saved)}: {words}" for words, saved in plan.savings.items()),
    ]


def _batch(plan: Any) -> list[str]:
    b = plan.batch
    text = [
        f"batch {b.tokens:,} tokens: {b.rows_per_device:g} sequences a device x {b.data_parallel} data parallel x {b.microbatches} "
        f"micro-batches x {b.accumulate} accumulated"
    ]
    text += [
        f"  {c.ratio:.3g} of a critical batch of {c.tokens:,.0f} tokens ({c.name}): about {c.extra_tokens:.1%} more tokens; {c.source}"
        for c in b.critical
    ]
    return [*text, *(f"  {note}" for note in b.notes)]


def _saves(plan: Any) -> list[str]:
    c = plan.checkpoint
    every = format_duration(c.every_s) + (f" ({c.every_steps:,} steps)" if c.every_steps else "")
    return [
        f"a save: {c.bytes / 1e9:,.4g} GB, {format_duration(c.seconds)}, of which steps wait {format_duration(c.blocked_s)}; a failure every {format_duration(c.mtbf_s)}",
        f"save every {every}: Young {format_duration(c.young_s)}, Daly {format_duration(c.daly_s)}; goodput {c.goodput:.1%} (simulated {c.simulated:.1%}, "
        f"{c.goodput_low:.1%} to {c.goodput_high:.1%}), {format_duration(c.lost_work_s)} of work lost a failure",
        *(f"  {note}" for note in c.notes),
    ]


def _advice(plan: Any) -> list[str]:
    """The ranked ways, or why there are none."""
    if not plan.advice:
        return (
            ["advice: no change that was looked at is faster and fits"]
            if plan.memory.fits
            else ["advice: none was found"]
        )
    text = ["advice: the same model and batch on as many devices, by predicted step time"]
    for one in plan.advice:
        changes = " ".join(f"--config.{key}={_value(value)}" for key, value in one.changes.items())
        text.append(
            f"  {format_duration(one.step_s)} ({one.of_plan:.2f} of this), {describe_memory_fit(one.fits, one.margin_bytes)}: {changes}"
        )
    return text


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _compiled(plan: Any) -> list[str]:
    """Formula, exact and compiled side by side."""
    from scalelab.plan.machine.compile import compare_components

    found, (name, size) = plan.compiled, memory_unit(plan.memory.total)
    head = f"compiled for {found.platform} in {found.seconds:.1f} s"
    text = [f"{head}: out of memory", found.oom] if found.oom else [head]
    if not found.peak_bytes:
        return text

    def cell(of: int | None) -> str:
        return "-" if of is None else f"{of / size:.3f}"

    text.append(f"  {name:<14} {'formula':>10} {'exact':>10} {'compiled':>10} {'compiled - exact':>17}")
    for row in compare_components(plan.memory, found):
        cells = [cell(of) for of in (row.formula_bytes, row.exact_bytes, row.compiled_bytes)]
        text.append(
            f"  {row.component:<14} " + " ".join(f"{each:>10}" for each in cells) + f" {cell(row.difference_bytes):>17}"
        )
    return [*text, *([found.note] if found.note else [])]


def format_measurement(found: Any) -> str:
    """One size of a measurement."""
    rates = f"{found.tokens_per_s:>12,.0f} {found.predicted_tokens_per_s:>12,.0f}"
    return f"{found.rows:>6} {rates} {found.step_s:>8.3g} s {found.compile_s:>8.3g} s"


def describe_knee(found: Any) -> str:
    """Where more rows stop paying, and why no larger size was measured."""
    where = (
        "nothing was measured"
        if found.knee_rows is None
        else f"{found.knee_rows} sequences a device reach 95 % of the best rate"
    )
    return f"{where}; {found.stopped} ({found.devices} x {found.device})"


def _served(plan: Any) -> list[str]:
    """Training and serving side by side, of one device each."""
    held, i = plan.memory.components, plan.inference
    trained = {
        "weights": sum(held.get(name, 0) for name in ("parameters", "master", "gradients", "optimizer", "average")),
        "kv_cache": 0,
        "activations": sum(held[name] for name in ("activations", "logits", "temporary", "batch")),
    }
    name, size = memory_unit(max(plan.memory.total, i.total))
    where = f"{i.batch} sequences of {i.context:,} tokens on one device"
    text = [
        f"{f'{name} of a device':<20} {'training':>10} {'serving':>10}   training's weights with gradients and optimizer; {where}"
    ]
    for name, each in i.components.items():
        text.append(f"  {name:<18} {trained[name] / size:>10.3f} {each / size:>10.3f}")
    text.append(
        f"  {'total':<18} {plan.memory.total / size:>10.3f} {i.total / size:>10.3f}   {describe_memory_fit(i.fits, i.margin_bytes)}"
    )
    text.append(
        f"  {i.kv_bytes_per_token:,} bytes of keys and values a token; room for {i.most_sequences:,} such sequences"
    )
    return [*text, *(f"  {note}" for note in i.notes)]


def describe_single_gpu(ways: Any) -> list[str]:
    """Ways to hold the model on one device, and the largest micro-batch of each."""
    text = [f"{'on one device: weights':<24} {'per layer':>10} {'remat':>6} {'rows':>6} {'GiB':>8}"]
    for way in ways:
        update = "yes" if way.per_layer else "no"
        size = f"{way.memory.total / GIB:>8.2f}" + (
            "" if way.rows else f"  {describe_memory_fit(False, way.memory.margin_bytes)} with one"
        )
        text.append(f"  {way.weights:<22} {update:>10} {way.remat:>6} {way.rows:>6} {size}")
    return text


def describe_calibration(found: Any) -> list[str]:
    """What measured runs say about the efficiencies."""
    return [
        f"calibrated by {len(found.runs)} programs: measured / predicted tokens/s {found.factor:.3g}; the next one within "
        f"{found.low:.2f} to {found.high:.2f} of what is predicted now",
        *found.notes,
    ]
