"""The share of a device's memory that a program gets: one set of functions for the planner and `scalelab train`.

jax takes a share of a GPU's memory when it starts, by default 75 % (JAX documentation, "GPU memory allocation"); a
program that needs more fails, even if the chip has more. A TPU's runtime keeps a fixed part.
"""

import os
import sys

from scalelab.errors import BadInput
from scalelab.hardware.chips import GIB, Chip

SHARE_VARIABLE = "XLA_CLIENT_MEM_FRACTION"  # name since jax 0.9; jax refuses to start if both names are set
OLD_SHARE_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"
ALLOCATOR_VARIABLE = "XLA_PYTHON_CLIENT_ALLOCATOR"
JAX_DEFAULT_SHARE = 0.75
REQUESTED_SHARE = 0.9  # the rest is left to CUDA, cuDNN and NCCL, which allocate outside jax's share
# Share of a GPU's nominal memory that CUDA reports as total: the driver keeps 1 to 2.5 %, ECC in GDDR6 a sixteenth.
REPORTED, REPORTED_GDDR6_ECC = 0.975, 0.91
GDDR6_ECC = ("A10", "A10G", "L4", "L40", "L40S", "T4")
# GiB below the nominal memory, from compiler messages ("exceeds available HBM (15.75G)"); v4 and v7 like v6e: assumed.
TPU_KEEPS = {"TPU v5e": 0.25, "TPU v5p": 0.0}
TPU_KEEPS_ELSE = 0.75


def gpu_memory_share(unset: float = REQUESTED_SHARE) -> float:
    """Share of a GPU's memory that jax gives a program: the one set in the environment, else `unset`.

    `unset` is by default what `train` asks for; `JAX_DEFAULT_SHARE` is right for a process that did not call
    `reserve_gpu_memory`. BadInput if the environment's share is not above 0 and at most 1.
    """
    if os.environ.get(ALLOCATOR_VARIABLE, "").lower() == "platform":  # no pool: the driver allocates every array
        return 1.0
    name = next((name for name in (SHARE_VARIABLE, OLD_SHARE_VARIABLE) if os.environ.get(name)), None)
    if name is None:
        return unset
    try:
        share = float(os.environ[name])
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise BadInput(f"{name}={os.environ[name]!r} is not a share above 0 and at most 1; e.g. {REQUESTED_SHARE}")
    return share


def reserve_gpu_memory() -> None:
    """Make jax take `gpu_memory_share` of a GPU's memory when it starts.

    Nothing changes if jax has started or the user set a share. BadInput as in `gpu_memory_share`.
    """
    gpu_memory_share()
    if not os.environ.get(SHARE_VARIABLE) and not os.environ.get(OLD_SHARE_VARIABLE) and not jax_started():
        os.environ[SHARE_VARIABLE] = str(REQUESTED_SHARE)


def jax_started() -> bool:
    """Whether jax has initialised its devices and so taken their memory."""
    if "jax" not in sys.modules:
        return False
    from jax._src.xla_bridge import backends_are_initialized  # every public function would start them

    return backends_are_initialized()


def usable_bytes(chip: Chip) -> int:
    """Bytes of one device that a program gets, estimated from the table: the chip need not be present."""
    if chip.given_bytes is not None:
        return chip.given_bytes
    if chip.name.startswith("CPU"):
        return chip.hbm_bytes
    if chip.name.startswith("TPU"):
        return chip.hbm_bytes - int(TPU_KEEPS.get(chip.name, TPU_KEEPS_ELSE) * GIB)
    reported = REPORTED_GDDR6_ECC if chip.name in GDDR6_ECC else REPORTED
    return int(gpu_memory_share() * reported * chip.hbm_bytes)


def describe_usable_bytes(chip: Chip) -> str:
    """Describe the source of `usable_bytes`; "" if a program gets all of the memory."""
    usable = usable_bytes(chip)
    if chip.given_bytes is not None or usable == chip.hbm_bytes:
        return ""
    text = f"{usable / GIB:.1f} of {chip.hbm_bytes / GIB:.0f} GiB are a program's"
    if chip.name.startswith("TPU"):
        return f"{text}: the runtime keeps the rest"
    share = f"{gpu_memory_share():.0%}"
    return f"{text}: jax takes {share} of what the driver leaves ({SHARE_VARIABLE}; `scalelab train` sets it)"
