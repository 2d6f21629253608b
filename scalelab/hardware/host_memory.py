"""The host's memory that a GPU reads: XLA keeps pinned arrays (`train.moments=pinned_host`) in a pool with a limit.

XLA's GPU client takes the limit, whole GiB, from LIMIT_VARIABLE when it starts; without it the pool ends at 64 GiB, and
AdamW's state of 8B parameters has 59.8 (openxla/xla, `GetGpuHostAllocator`). The pool grows by regions of powers of
two up to its limit, so arrays leave gaps: hence POOL_SHARE. It never returns memory to the system.
"""

import math
import os
from collections.abc import Mapping

from scalelab.errors import BadInput
from scalelab.hardware.chips import GIB, host_memory_bytes
from scalelab.hardware.device_memory import jax_started

LIMIT_VARIABLE = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
XLA_LIMIT_GIB = 64
POOL_SHARE = 4 / 3  # pool / arrays: gaps were up to 31 % in 200 orders (tests/hardware/test_host_memory.py)
STAGING_BYTES = 4 * GIB  # batches, metrics and saves pass through the same pool


def pool_gib(pinned_bytes: int) -> int:
    """The limit, in whole GiB, of a pool that holds so many pinned bytes; never below XLA's own."""
    return max(XLA_LIMIT_GIB, math.ceil((POOL_SHARE * pinned_bytes + STAGING_BYTES) / GIB))


def limit_gib() -> int:
    """Limit that this process's GPU client has or will take. BadInput if the environment's limit is not a number."""
    text = os.environ.get(LIMIT_VARIABLE) or str(XLA_LIMIT_GIB)
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"{LIMIT_VARIABLE}={text!r} is not a whole number of GiB; e.g. {XLA_LIMIT_GIB}") from None


def reserve_host_memory(pinned_bytes: int) -> None:
    """Give XLA's pool room for so many pinned bytes when jax starts; a limit set in the environment stays.

    BadInput if this host has less memory, if the limit that is set is too low, or if jax has started with a low one.
    """
    if not pinned_bytes:
        return
    needed, total = f"train.moments=pinned_host needs {pinned_bytes / GIB:,.1f} GiB", host_memory_bytes()
    if pinned_bytes > total:
        raise BadInput(
            f"{needed} of the host's memory, which has {total / GIB:,.1f}; nearest: an optimizer with less state, such "
            "as optim.name=lion, or train.moments=device on more devices"
        )
    wanted = min(pool_gib(pinned_bytes), max(1, total // GIB))
    if not os.environ.get(LIMIT_VARIABLE) and not jax_started():
        os.environ[LIMIT_VARIABLE] = str(wanted)
    if pinned_bytes > limit_gib() * GIB:
        late = "" if os.environ.get(LIMIT_VARIABLE) else ", XLA's own, as jax has started"
        raise BadInput(
            f"{needed} and {LIMIT_VARIABLE} allows {limit_gib()}{late}; nearest: {LIMIT_VARIABLE}={wanted} before the "
            "process starts"
        )


def reserved_facts(pinned_bytes: int) -> dict[str, int]:
    """Facts for the record: bytes of moments, bytes of this host, and the pool's limit."""
    return {"moments_bytes": pinned_bytes, "limit_gib": limit_gib(), "bytes": host_memory_bytes()}


def describe_reserved(facts: Mapping[str, int]) -> str:
    """Describe `reserved_facts` as text."""
    return (
        f"host memory for moments: {facts['moments_bytes'] / GIB:,.3g} GiB in a pool of at most {facts['limit_gib']:,} "
        f"({LIMIT_VARIABLE}, which GPUs read); this host has {facts['bytes'] / GIB:,.1f}"
    )
