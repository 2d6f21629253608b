"""What may be changed so that a plan fits: one list, from what leaves a training's numbers to what changes them.

`advice` searches layouts (mesh, remat, micro-batch, accumulation, ZeRO stage) of a config as it is, and how its experts
are multiplied (`with_least_rows`). The other levers here change the config first: each is what a user would write on
the command line, checked as any config is.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import set_by
from scalelab.config import Layout, ModelShape, Static, optimizer_defaults, with_fields
from scalelab.config.keys import COUNT
from scalelab.config.steps import schedule_steps
from scalelab.parallel.mesh import MESH_AXES
from scalelab.plan.machine.machine import Machine
from scalelab.plan.step.efficiency import machine_platform
from scalelab.precision.policy import POLICIES

Changes = dict[str, str]  # {config key: its text}
# What the trainer asks of an update layer by layer (`per_layer.refusals`); steps follow, so that tokens stay.
PER_LAYER = {"train.updates": "per_layer", "train.accumulate": "1", "model.remat": "full"}
BUFFER = "1.5"  # times the mean of experts' rows, beyond which they are dropped and counted
ROUNDING = 16  # times half of what a batch may change by where devices don't divide it
SHARED = (2, 4, 8)  # devices that share a sequence along `tensor`, where there are more than the batch takes
FREE_FORMATS, FREE_OPTIMIZER = ("bf16", "fp8"), "adam8bit"  # what --free tries
PRODUCTS, LOOP = "model.expert_products", "loop"  # how experts are multiplied, and with the least rows
MOST_STEPS = COUNT.high  # of a run
MOST_ROWS = 8  # of a step that updates layer by layer
RANK_SHARES = (4, 8)  # width over GaLore's rank: a quarter as in Zhao et al. 2024, table 2, and half of that
NO_RAMP = {"schedule.batch_stages": "", "schedule.batch_start": "none", "schedule.batch_warmup_tokens": "none"}


def list_changes(config: ConfigDict, static: Static, machine: Machine) -> Iterator[Changes]:
    """Changes to try one after the other, nearest first; {} is the config as it is.

    A batch that the devices divide, formats, then buffers of experts that end; on several devices moments in 8 bits,
    with one micro-batch of a sequence a device, and of low rank too. On one device updates layer by layer with fewer
    sequences a step, with moments in the host's memory (last where its size is not known), in 8 bits, or in 8 bits and
    of low rank.
    """
    formats, divided = list(_narrower_formats(static, machine)), round_batch(config, static.layout.devices)
    yield {}
    if divided:
        yield divided
    yield from (divided | form for form in formats)
    if static.model.n_experts and static.layout.devices > 1 and not static.layout.expert_buffer:
        yield {"parallel.expert_buffer": BUFFER}
    if static.updates_layers:
        return
    if static.layout.devices > 1:
        yield from _lean_moments(config, static, divided)
        return
    counts = _row_counts(config, static)
    for form in [{}, *formats]:
        for rows in counts:
            yield form | _by_layer(config, static, rows)
    narrowest = (formats[-1] if formats else {}) | _by_layer(config, static, counts[-1])
    on_host = {"train.moments": "pinned_host"}
    if machine.host_bytes is not None:
        yield narrowest | on_host
    yield narrowest | change_optimizer(config, "adam8bit")
    yield from (narrowest | low for low in _low_ranks(config, static))
    if machine.host_bytes is None and machine_platform(machine) != "cpu":
        yield narrowest | on_host
    yield change_optimizer(config, "adam8bit")  # updates layer by layer take no scaled loss


def _lean_moments(config: ConfigDict, static: Static, divided: Changes) -> Iterator[Changes]:
    """On several devices: moments in 8 bits, then with one micro-batch of a sequence a device, then of low rank.

    Gradients of one micro-batch need no second copy to be summed in.
    """
    devices, bf16 = static.layout.devices, {"precision.name": "bf16"}
    form = bf16 if POLICIES[static.precision].forward == "float32" else {}
    eight_bits = form | change_optimizer(config, "adam8bit")
    yield divided | eight_bits
    if devices >= static.global_batch or devices < _least_rows(config):
        return
    one = {"train.global_batch": str(devices), "train.accumulate": "1"}
    one |= steps_for_tokens(config, devices) | remove_ramp(config)
    yield one | eight_bits
    yield from (one | form | low for low in _low_ranks(config, static))


def _low_ranks(config: ConfigDict, static: Static) -> Iterator[Changes]:
    """GaLore in 8 bits with each share of the width as its rank."""
    for share in RANK_SHARES:
        yield change_optimizer(config, "galore8bit") | {"optim.rank": str(max(1, static.model.d_model // share))}


def list_free(config: ConfigDict, machine: Machine, free: tuple[str, ...]) -> list[Changes]:
    """The config as it is and with what it leaves free: formats that the chip multiplies, an optimizer in 8 bits."""
    static = config_lib.static(config)
    formats: list[Changes] = [{}]
    if "precision" in free:
        units = {name: POLICIES[name].unit for name in FREE_FORMATS if name != static.precision}
        known = {"float8" if unit.startswith("float8") else unit: name for name, unit in units.items()}
        formats += [{"precision.name": name} for unit, name in known.items() if unit in machine.chip.flops]
    lean = "optimizer" in free and static.optim.name != FREE_OPTIMIZER
    optimizers = [{}, change_optimizer(config, FREE_OPTIMIZER)] if lean else [{}]
    return [form | optimizer for form in formats for optimizer in optimizers]


def round_batch(config: ConfigDict, devices: int) -> Changes:
    """The nearest batch that so many devices divide, for as many tokens; {} if they divide the config's own.

    Each device then has a multiple of a power of two, as far as the batch changes by a 32nd at most; one sequence if
    not. Where there are more devices than sequences, the nearest that up to SHARED of them share a sequence for. A
    batch's warm-up goes, as its first batches need not divide either.
    """
    batch = config.train.global_batch
    shared = [n for n in (1, *SHARED) if devices % n == 0 and batch >= devices / n / 2]
    splits = [1] if batch >= devices else shared
    sizes = [_round_rows(batch, devices // n) for n in splits]
    if not sizes or batch in sizes:
        return {}
    return _change_batch(config, min(sizes, key=lambda rows: abs(rows - batch)))


def _change_batch(config: ConfigDict, rows: int) -> Changes:
    """A step of so many sequences, for as many tokens, in one micro-batch where the config's own don't divide it."""
    whole = {} if rows % config.train.accumulate == 0 else {"train.accumulate": "1"}
    return {"train.global_batch": str(rows)} | steps_for_tokens(config, rows) | remove_ramp(config) | whole


def _round_rows(batch: int, replicas: int) -> int:
    """The nearest multiple of so many replicas to a batch."""
    if batch % replicas == 0:
        return batch
    each = 2 ** max(0, int(math.log2(max(1.0, batch / replicas / ROUNDING))))
    return max(1, round(batch / (replicas * each))) * replicas * each


def even_batch(config: ConfigDict, devices: int) -> Changes:
    """A batch near an odd one that splits into more micro-batches, for as many tokens; {} if the config's own does.

    Within a 16th of it (a quarter, of less than four sequences a device) the multiple of the largest power of two that
    the devices divide; else of that power alone. A prime number of sequences is one micro-batch, or as many as it has.
    A batch's warm-up goes, as its first batches need not divide.
    """
    batch = config.train.global_batch
    units = [math.lcm(base, 2**k) for base in (devices, 1) for k in range(batch.bit_length(), -1, -1)]
    sizes = (round(batch / unit) * unit for unit in units)
    share = 4 if batch < 4 * devices else ROUNDING
    rows = next(size for size in sizes if size and share * abs(size - batch) <= batch)
    return {} if rows == batch else _change_batch(config, rows)


def _by_layer(config: ConfigDict, static: Static, rows: int) -> Changes:
    """Updates layer by layer with so many sequences a step."""
    batch = {"train.global_batch": str(rows)} if rows != static.global_batch else {}
    steps = steps_for_tokens(config, rows) if batch else {}
    return PER_LAYER | batch | steps | remove_ramp(config)


def change_optimizer(config: ConfigDict, name: str) -> Changes:
    """Another optimizer, with its own defaults in place of the old one's, and without what it has no option for."""
    origins = config_lib.config_value_origins(config)
    known = optimizer_defaults.default_optim_values(name, None)
    values = {key: value for key, value in config.optim.items() if key not in ("name", "own") and value is not None}
    foreign = [key for key in values if key not in known and key not in optimizer_defaults.COMMON_KEYS]
    unset = {key for key in values if origins.get(f"optim.{key}") == set_by.DEFAULT} | {*foreign}
    return {"optim.name": name} | {f"optim.{key}": "none" for key in sorted(unset)}


def remove_ramp(config: ConfigDict) -> Changes:
    """Changes that drop the batch's warm-up; {} if there is none."""
    empty = {key: None if text == "none" else text for key, text in NO_RAMP.items()}
    return {key: text for key, text in NO_RAMP.items() if config.schedule[key.split(".")[1]] != empty[key]}


def without_mesh(config: ConfigDict) -> Changes:
    """Changes that leave the mesh to be chosen; {} if the config has none."""
    return {f"parallel.{axis}": "1" for axis in MESH_AXES if config.parallel[axis] != 1}


def _narrower_formats(static: Static, machine: Machine) -> Iterator[Changes]:
    """Precision policies that keep less than the config's own; none on a chip that multiplies no bfloat16."""
    if "bfloat16" not in machine.chip.flops and machine_platform(machine) != "cpu":
        return
    if POLICIES[static.precision].forward == "float32":
        yield {"precision.name": "bf16"}
    if POLICIES[static.precision].parameters == "float32":
        yield {"precision.name": "bf16_stochastic"}


def _row_counts(config: ConfigDict, static: Static) -> list[int]:
    """Sequences of a step, most first, up to the config's own, and as many as its steps can be counted with."""
    most, least = min(MOST_ROWS, static.global_batch), _least_rows(config)
    return [2**k for k in range(int(math.log2(most)), -1, -1) if 2**k >= least] or [static.global_batch]


def _least_rows(config: ConfigDict) -> int:
    """Sequences of a step with which the tokens of the config's batches take no more steps than can be counted."""
    tokens = schedule_steps.tokens_before(config, config.train.steps)
    return math.ceil(tokens / (config.model.seq_len * MOST_STEPS))


def steps_for_tokens(config: ConfigDict, rows: int) -> Changes:
    """As many steps of so many sequences as the tokens of the config's own batches take."""
    tokens = schedule_steps.tokens_before(config, config.train.steps)
    return {"train.steps": str(math.ceil(tokens / (rows * config.model.seq_len)))}


def with_products(static: Static, way: str) -> Static:
    """`static` with its experts multiplied that way."""
    if static.model.expert_products == way:
        return static
    return with_fields(static, model=_multiplied(static.model, way))


@functools.cache
def _multiplied(shape: ModelShape, way: str) -> ModelShape:
    return with_fields(shape, expert_products=way)


def with_least_rows(static: Static, platform: str) -> Static:
    """`static` with its experts multiplied in a loop, block after block, where a GPU would multiply empty ones too.

    Sums are equal to rounding, it holds less, and copies no weight for a block; but a loop waits for its launches.
    """
    shape = static.model
    has_choice = shape.n_experts and not shape.expert_capacity and platform == "gpu"
    return with_products(static, LOOP) if has_choice else static


def changed_keys(before: Static, after: Static) -> dict[str, Any]:
    """Config keys that differ, with their new values."""
    values: dict[str, tuple[Any, Any]] = {
        "train.accumulate": (before.accumulate, after.accumulate),
        "model.remat": (before.model.remat, after.model.remat),
        PRODUCTS: (before.model.expert_products, after.model.expert_products),
    }
    pipeline = ("schedule", "microbatches", "rounds")  # have no effect without stages
    for field in dataclasses.fields(Layout):
        if after.layout.stage == 1 and field.name in pipeline:
            continue
        values[f"parallel.{field.name}"] = getattr(before.layout, field.name), getattr(after.layout, field.name)
    return {key: new for key, (old, new) in values.items() if old != new}


def kind_of_change(key: str) -> str:
    """Kind of a changed key: micro-batch | remat | zero | products | mesh."""
    if key in ("train.accumulate", "parallel.microbatches"):
        return "micro-batch"
    return {"model.remat": "remat", "parallel.zero": "zero", PRODUCTS: "products"}.get(key, "mesh")
