"""Measurement of the real step on the present devices at growing micro-batches, beside the plan's tokens/s."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from scalelab import config as configs
from scalelab.errors import BadInput
from scalelab.parallel import mesh, rules
from scalelab.plan.machine.machine import Machine
from scalelab.plan.memory.memory import step_memory
from scalelab.plan.step.efficiency import Efficiency
from scalelab.plan.step.time import step_time
from scalelab.train.step.program import sequential_program

ROWS = tuple(2**i for i in range(13))
KNEE = 0.95  # of the best rate
MEASURED_S = 1.0  # steps of a size are repeated for so long


@dataclasses.dataclass(frozen=True)
class ThroughputPoint:
    """One size. `rows`: sequences on a device at once; rates are over all devices."""

    rows: int
    batch_tokens: int
    step_s: float  # median over dispatches
    tokens_per_s: float
    predicted_tokens_per_s: float
    compile_s: float
    memory_bytes: int  # as planned


@dataclasses.dataclass(frozen=True)
class Measurement:
    """`knee_rows`: smallest size with 95 % of the best rate, None if none ran. `stopped`: why no larger size ran."""

    device: str
    devices: int
    points: tuple[ThroughputPoint, ...]
    knee_rows: int | None
    stopped: str


def measure_throughput(
    config: ConfigDict,
    machine: Machine,
    efficiency: Efficiency | None = None,
    rows: Sequence[int] = ROWS,
    budget_s: float = 120.0,
    progress: Callable[[ThroughputPoint], None] = lambda _: None,
) -> Measurement:
    """Increase the micro-batch of a resolved config: compile its train step for each of `rows`, run on random tokens.

    It ends when the device is out of memory, or would be by the plan, when `budget_s` is over (checked between sizes),
    or after the last size. Steps don't accumulate gradients. BadInput where the layout doesn't suit the devices.
    """
    points: list[ThroughputPoint] = []
    stopped, machine = f"{rows[-1]} rows were the most asked for", _single_device_machine(machine)
    start = before = time.perf_counter()
    for size in rows:
        now = time.perf_counter()
        if points and now - start + (now - before) > budget_s:  # if this size takes as long as the last
            stopped = f"{size} rows would go beyond {budget_s:g} s"
            break
        before = now
        static, h = _split_config(config, size)
        needed = step_memory(static, machine)
        if needed.least > needed.capacity:
            stopped = (
                f"{size} rows need {needed.least / 2**30:.1f} GiB by the plan, of {needed.capacity / 2**30:.1f} GiB"
            )
            break
        try:
            compile_s, step_s = _time_steps(static, h)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            stopped = f"out of memory at {size} rows: {str(error).splitlines()[0]}"
            break
        tokens = static.global_batch * static.model.seq_len
        predicted = step_time(static, machine, efficiency).tokens_per_s
        points.append(ThroughputPoint(size, tokens, step_s, tokens / step_s, predicted, compile_s, needed.total))
        progress(points[-1])
    best = max((point.tokens_per_s for point in points), default=0.0)
    knee = next((point.rows for point in points if point.tokens_per_s >= KNEE * best), None)
    return Measurement(jax.devices()[0].device_kind, jax.device_count(), tuple(points), knee, stopped)


def _single_device_machine(machine: Machine) -> Machine:
    """The machine with one device's share: fake devices of a CPU share its cores and memory."""
    n = jax.device_count() if jax.devices()[0].platform == "cpu" else 1
    chip = machine.chip
    share = dataclasses.replace(
        chip,
        flops={unit: rate / n for unit, rate in chip.flops.items()},
        hbm_bytes=chip.hbm_bytes // n,
        hbm_bytes_per_s=chip.hbm_bytes_per_s / n,
        link_bytes_per_s=chip.link_bytes_per_s / n,
    )
    return dataclasses.replace(machine, chip=share, devices_per_node=max(n, machine.devices_per_node))


def _split_config(config: ConfigDict, rows: int) -> tuple[configs.Static, configs.Hparams]:
    """The static and the traced half of a config with so many rows a device. BadInput in several processes."""
    if jax.process_count() > 1:
        raise BadInput("--measure is for one process: a plan of several is measured by training (--calibrate RUNS)")
    layout = mesh.resolve_layout(configs.static(config).layout, jax.device_count())
    batch = rows * layout.batch_parts * (layout.microbatches if layout.stage > 1 else 1)
    values = {"train.global_batch": batch, "train.accumulate": 1, "schedule.batch_start": "none"}
    sized = configs.resolve(configs.override(config, values | {"schedule.batch_warmup_tokens": "none"}))
    static = dataclasses.replace(configs.static(sized), layout=layout)
    rules.check_layout(static, layout)
    separator = {"dataset.separator": config.model.vocab_size - 1}
    return static, configs.replace_hparams(configs.hparams(sized), separator)


def _time_steps(static: configs.Static, h: configs.Hparams) -> tuple[float, float]:
    """(seconds of the first dispatch, compilation included; median seconds of a step after it)."""
    program = sequential_program(static, [h])
    states, random = program.init(), np.random.default_rng(0)
    tokens = random.integers(
        static.model.vocab_size, size=(1, static.global_batch, static.model.seq_len + 1), dtype=np.int32
    )
    batch = [tokens[:, program.rows]]
    seconds: list[float] = []
    while len(seconds) < 4 or sum(seconds[1:]) < MEASURED_S:
        start = time.perf_counter()
        states, metrics = program.advance(states, batch, 1)
        jax.block_until_ready((states, metrics))
        seconds.append(time.perf_counter() - start)
    return seconds[0], float(np.median(seconds[1:]))
