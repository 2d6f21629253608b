"""Bounds as closed forms on `Machine`s and `links`: of products by memory, layouts by links, models by capacity.

After Austin et al. 2025, "How to Scale Your Model" (the Scaling Book), parts 1 to 6, which has every worked example
that the tests hold these against. A block is two matrices D x F there, and one collective at a time is taken to hide
behind products.
"""

import math

from scalelab.config import Layout
from scalelab.hardware.chips import unit_flops
from scalelab.plan.machine.machine import Machine
from scalelab.plan.step import links


def critical_tokens(
    flops: float,
    bytes_per_s: float,
    weight_bytes: float = 2,
    activation_bytes: float = 2,
    inputs: float = math.inf,
    outputs: float = math.inf,
) -> float:
    """Tokens from which a product of `inputs` x `outputs` weights is bound by FLOP/s, not by a memory's `bytes_per_s`.

    2 T K N / C against (a T (K + N) + w K N) / W, solved for T; with K and N infinite w C / 2 W (part 1). Infinite
    where it never is.
    """
    per_token = 2 / flops - activation_bytes * (1 / inputs + 1 / outputs) / bytes_per_s
    return weight_bytes / bytes_per_s / per_token if per_token > 0 else math.inf


def unit_peak_flops(machine: Machine, unit: str = "bfloat16") -> float:
    """FLOP/s of one device."""
    unit_rate = unit_flops(machine.chip, unit)
    assert unit_rate, f"{machine.chip.name} has no unit for {unit}"
    return unit_rate[0]


def load_s(held_bytes: float, machine: Machine, devices: int) -> float:
    """Seconds to read `held_bytes` once by `devices`: a decoded token's least time (part 2, question 1)."""
    return held_bytes / (devices * machine.chip.hbm_bytes_per_s)


def limit_s(kind: str, whole_bytes: float, layout: Layout, machine: Machine, axis: str) -> float:
    """A collective's time in the limit of a long axis: V / W, twice that for an all-reduce (part 3).

    `links.ring_s` is the exact one, (n - 1) / n of this. `whole_bytes`: of the array once gathered along `axis`.
    """
    return links.SENDS[kind] * whole_bytes / links.bytes_per_s(layout, machine, axis)


def most_parameters(machine: Machine, bytes_per_parameter: float = 10) -> float:
    """Parameters that fit on one device without splitting them; 10 bytes: bf16 and two fp32 moments (part 5)."""
    return machine.chip.hbm_bytes / bytes_per_parameter


def axis_intensity(layout: Layout, machine: Machine, axis: str, unit: str = "bfloat16") -> float:
    """FLOPs of a device while it sends a byte along `axis`: the tokens it needs so that FSDP does not wait (part 5)."""
    return unit_peak_flops(machine, unit) / links.bytes_per_s(layout, machine, axis)


def most_tensor(d_ff: int, alpha: float, dimensions: int = 1) -> float:
    """Devices that tensor parallelism can use before it waits: n F / alpha, alpha an axis's intensity (part 5)."""
    return dimensions * d_ff / alpha


def least_tokens(d_ff: int, alpha: float, fsdp_dimensions: int = 2, tensor_dimensions: int = 1) -> float:
    """Tokens a device below which every mix of FSDP and tensor parallelism waits: 4 alpha^2 / (F M_X M_Y) (part 5)."""
    return 4 * alpha**2 / (d_ff * fsdp_dimensions * tensor_dimensions)


def best_fsdp(tokens: float, devices: int, d_ff: int, fsdp_dimensions: int = 2, tensor_dimensions: int = 1) -> float:
    """Of `devices`, how many for FSDP, the rest for tensor parallelism: where both together send least.

    T(X) = D F X / (N M_X) + B D / (X M_Y) in units of 4 / W is least at X = sqrt(B N M_X / (F M_Y)).
    """
    return math.sqrt(tokens * devices * fsdp_dimensions / (d_ff * tensor_dimensions))


def fsdp_range(
    tokens: float, devices: int, d_ff: int, alpha: float, fsdp_dimensions: int = 2, tensor_dimensions: int = 1
) -> tuple[float, float] | None:
    """Range of devices for FSDP (the rest: tensor parallelism) that hides sending behind products, or None.

    The roots of alpha F M_Y X^2 - B F M_X M_Y X + alpha B N M_X = 0 (part 5).
    """
    a, b = alpha * d_ff * tensor_dimensions, tokens * d_ff * fsdp_dimensions * tensor_dimensions
    inner = b**2 - 4 * a * alpha * tokens * devices * fsdp_dimensions
    if inner < 0:
        return None
    return (b - math.sqrt(inner)) / (2 * a), (b + math.sqrt(inner)) / (2 * a)


def training_days(total_flops: float, devices: int, flops: float, share: float = 1.0) -> float:
    """Days of a training at `share` of the peak (MFU)."""
    return total_flops / (devices * flops * share) / 86_400
