"""How much of a device's memory a program gets: the planner counts it and `scalelab train` asks jax for it, by the same functions.

jax takes a share of a GPU's memory when it starts, 75 % unless it is told otherwise (JAX documentation, "GPU memory
allocation"); what a program needs beyond it fails, whatever else the chip holds. A TPU's runtime keeps a fixed part.
"""

import os
import sys

from scalelab.errors import BadInput
from scalelab.hardware.chips import GIB, Chip

SHARE_VARIABLE = "XLA_CLIENT_MEM_FRACTION"  # the name since jax 0.9; with both set jax refuses to start
OLD_SHARE_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"
ALLOCATOR_VARIABLE = "XLA_PYTHON_CLIENT_ALLOCATOR"
JAX_DEFAULT_SHARE = 0.75
REQUESTED_SHARE = 0.9  # the rest is for CUDA, cuDNN and NCCL, which take theirs beside jax's
# Of the memory that a GPU is sold with, what CUDA reports as its total: the driver keeps 1 to 2.5 %, ECC in GDDR6 a sixteenth.
REPORTED, REPORTED_GDDR6_ECC = 0.975, 0.91
GDDR6_ECC = ("A10", "L4", "L40S", "T4")
# GiB that a TPU's compiler calls available ("exceeds available HBM (15.75G)"); v4 and v7 as v6e, which is our assumption.
TPU_KEEPS = {"TPU v5e": 0.25, "TPU v5p": 0.0}
TPU_KEEPS_ELSE = 0.75


def gpu_memory_share(unset: float = REQUESTED_SHARE) -> float:
    """The share of a GPU's memory that jax gives a program: the user's own from the environment, else what `train` asks for.

    `unset`: what counts where the environment says nothing; `JAX_DEFAULT_SHARE` for a process that didn't ask (`reserve_gpu_memory`).
    BadInput where the environment has no share that jax would take.
    """
    if os.environ.get(ALLOCATOR_VARIABLE, "").lower() == "platform":  # no pool: every array is the driver's
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
    """Have jax take `gpu_memory_share` of a GPU's memory when it starts; nothing is changed once it has, nor where the user set a share."""
    gpu_memory_share()
    if not os.environ.get(SHARE_VARIABLE) and not os.environ.get(OLD_SHARE_VARIABLE) and not _jax_started():
        os.environ[SHARE_VARIABLE] = str(REQUESTED_SHARE)


def _jax_started() -> bool:
    """Whether jax has taken its devices, and with them their memory."""
    if "jax" not in sys.modules:
        return False
    from jax._src.xla_bridge import backends_are_initialized  # no public function asks without starting them

    return backends_are_initialized()


def usable_bytes(chip: Chip) -> int:
    """Bytes of one device that a program gets, as far as it is known of a chip that need not be here."""
    if chip.given_bytes is not None:
        return chip.given_bytes
    if chip.name.startswith("CPU"):
        return chip.hbm_bytes
    if chip.name.startswith("TPU"):
        return chip.hbm_bytes - int(TPU_KEEPS.get(chip.name, TPU_KEEPS_ELSE) * GIB)
    reported = REPORTED_GDDR6_ECC if chip.name in GDDR6_ECC else REPORTED
    return int(gpu_memory_share() * reported * chip.hbm_bytes)


def describe_usable_bytes(chip: Chip) -> str:
    """Where `usable_bytes` comes from, in words; "" where all of it is a program's."""
    usable = usable_bytes(chip)
    if chip.given_bytes is not None or usable == chip.hbm_bytes:
        return ""
    text = f"{usable / GIB:.1f} of {chip.hbm_bytes / GIB:.0f} GiB are a program's"
    if chip.name.startswith("TPU"):
        return f"{text}: the runtime keeps the rest"
    return f"{text}: jax takes {gpu_memory_share():.0%} of what the driver leaves ({SHARE_VARIABLE}; `scalelab train` sets it)"
