"""Measured rates of this machine: copies of memory and matrix products."""

import functools
import time
from typing import Any

from scalelab.hardware.chips import dtype_name, table_flops

WIDER_DTYPE = {"float8": "bfloat16", "tensorfloat32": "float32"}  # format measured instead if the table lacks the unit

LEAST_PRODUCTS, ENOUGH_S = 4, 0.1  # products and seconds after which a measurement ends: each run on a CPU makes one


def measured_copy_bytes_per_s(mib: int = 64, repeats: int = 5) -> float:
    """Bytes per second, read and written, while this host copies `mib` MiB: the best of `repeats` after a warm-up."""
    import numpy as np

    source = np.ones(mib * 2**20, np.uint8)
    target = source.copy()
    best = min(_copy_array(source, target) for _ in range(repeats))
    return 2 * source.nbytes / best


def _copy_array(source: Any, target: Any) -> float:
    start = time.perf_counter()
    target[...] = source
    return time.perf_counter() - start


def measured_matmul_flops(n: int = 1024, dtype: Any = "float32", repeats: int = 10, device: Any = None) -> float:
    """FLOP/s of a jitted n x n x n product (2 n^3 FLOPs), the best of at most `repeats` after a warm-up.

    The best counts, as other load only lowers the rate. On two idle CPU cores, 10 products of n = 1024 take about 0.1
    s; slow machines end after LEAST_PRODUCTS and ENOUGH_S.
    """
    import jax
    import numpy as np

    numbers = np.random.default_rng(0).standard_normal(2**20, np.float32)  # made on the host: nothing else to compile
    a = jax.device_put(np.resize(numbers, (n, n)).astype(jax.numpy.dtype(dtype)), device)
    bits = "highest" if a.dtype == "float32" else None
    product = jax.jit(lambda a: jax.numpy.matmul(a, a, precision=bits))
    product(a).block_until_ready()
    seconds = [_time_call(product, a) for _ in range(min(repeats, LEAST_PRODUCTS))]
    while len(seconds) < repeats and sum(seconds) < ENOUGH_S:
        seconds.append(_time_call(product, a))
    return 2 * n**3 / min(seconds)


_measured = functools.cache(lambda n, dtype, device: measured_matmul_flops(n, dtype, device=device))


def _time_call(function: Any, argument: Any) -> float:
    start = time.perf_counter()
    function(argument).block_until_ready()
    return time.perf_counter() - start


def peak_flops(device: Any, dtype: Any = "float32") -> tuple[float, str]:
    """(FLOP/s of one jax device for products of `dtype`, source of the figure): the table's value, else a measured one.

    CPU devices of one process share its cores, so each counts for its share of the measured rate.
    """
    peak = table_flops(device.device_kind, dtype)
    if peak:
        return peak
    name, on_cpu = WIDER_DTYPE.get(dtype_name(dtype), dtype_name(dtype)), device.platform == "cpu"
    n = 1024 if on_cpu else 8192
    flops = _measured(n, name, device)
    sharing = len(device.client.local_devices()) if on_cpu else 1
    return flops / sharing, f"measured {name} matmul of {n} x {n} on this {device.device_kind}"
