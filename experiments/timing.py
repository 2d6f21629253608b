"""Timing side by side: on a machine that others use, only the ratio of neighbours in time can be trusted.

Every contender is a function that does one unit of work; it may return arrays, which are waited for. Contenders take
turns, in an order that reverses each round, so a drift of the machine and a neighbour's cache fall on all alike.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

PEAK_SIZE = 2048  # large enough that the product, not its dispatch, takes the time; 17 GFLOP


def time_interleaved(
    contenders: Mapping[str, Callable[[], Any]], rounds: int = 9, warmup: int = 2
) -> dict[str, list[float]]:
    """Seconds of each contender in each round, after `warmup` untimed rounds (for compilation and memory)."""
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for i in range(-warmup, rounds):
        for name in names if i % 2 == 0 else reversed(names):
            start = time.perf_counter()
            jax.block_until_ready(contenders[name]())
            if i >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio_over_rounds(seconds: Mapping[str, list[float]], top: str, bottom: str) -> tuple[float, float, float]:
    """(median, lowest, highest) over rounds of seconds[top] / seconds[bottom], neighbours in time."""
    ratios = [a / b for a, b in zip(seconds[top], seconds[bottom], strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def peak_matmul() -> tuple[Callable[[], jax.Array], float]:
    """(a contender that multiplies two fp32 PEAK_SIZE^2 matrices, its FLOPs): the peak that steps are compared with."""
    a = jax.random.normal(jax.random.key(0), (PEAK_SIZE, PEAK_SIZE))
    multiply = jax.jit(jnp.dot)
    return lambda: multiply(a, a), 2.0 * PEAK_SIZE**3
