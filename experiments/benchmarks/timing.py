"""Timing side by side: on a machine that others use, only the ratio of neighbours in time can be trusted.

Every contender is a function that does one unit of work; it may return arrays, which are waited for. Contenders take turns,
in an order that reverses each round, so a drift of the machine and a neighbour's cache fall on all alike.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

PEAK_SIZE = 2048  # large enough that the product, not its dispatch, takes the time; 17 GFLOP


def interleaved(
    contenders: Mapping[str, Callable[[], Any]], rounds: int = 9, warmup: int = 2
) -> dict[str, list[float]]:
    """Seconds of each contender in each round, after `warmup` untimed rounds (compilation, first touch of memory)."""
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for i in range(-warmup, rounds):
        for name in names if i % 2 == 0 else reversed(names):
            start = time.perf_counter()
            jax.block_until_ready(contenders[name]())
            if i >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: Mapping[str, list[float]], top: str, bottom: str) -> tuple[float, float, float]:
    """(median, lowest, highest) over rounds of seconds[top] / seconds[bottom]; a round's two are neighbours in time."""
    each = [a / b for a, b in zip(seconds[top], seconds[bottom], strict=True)]
    return statistics.median(each), min(each), max(each)


def peak_matmul() -> tuple[Callable[[], jax.Array], float]:
    """(a contender that multiplies two fp32 PEAK_SIZE^2 matrices, its FLOPs): the roof that steps are measured against."""
    a = jax.random.normal(jax.random.key(0), (PEAK_SIZE, PEAK_SIZE))
    multiply = jax.jit(jnp.dot)
    return lambda: multiply(a, a), 2.0 * PEAK_SIZE**3


def machine() -> str:
    """One line: processor, cores, load, and the versions that decide speed."""
    versions = " ".join(f"{name} {version(name)}" for name in ("jax", "jaxlib", "flax", "optax", "numpy"))
    load = os.getloadavg()[0]
    return f"{_processor()}, {_cores()} cores (load {load:.1f}), Python {platform.python_version()}, {versions}"


def _processor() -> str:
    """The name Linux gives the processor, else Python's."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
