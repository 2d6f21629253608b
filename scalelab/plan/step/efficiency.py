"""The share of a datasheet's figures that programs reach, as ranges with sources: the planner's only measured numbers.

A range is not a confidence interval: its ends are what published systems reach at worst and at best with large models.
"""

import dataclasses

from scalelab.plan.machine.machine import Machine


@dataclasses.dataclass(frozen=True)
class Range:
    """A share between 0 and 1: what is expected, and how low and how high it may be."""

    low: float
    expected: float
    high: float


@dataclasses.dataclass(frozen=True)
class Efficiency:
    """Shares of the datasheet: `matmul` of the unit's FLOP/s in large products, `attention` of it in fused attention,
    `hbm` and `network` of bandwidths, and `overlap`: of the traffic that can be hidden behind computing, how much is.
    `measured` multiplies all four rates: 1 until runs were measured (calibrate.py).
    """

    matmul: Range
    attention: Range
    hbm: Range
    network: Range
    overlap: Range
    sources: tuple[str, ...]
    measured: Range = Range(1.0, 1.0, 1.0)


# Of the datasheet's FLOP/s and bandwidths. On GPUs `matmul` is what makes the median error of Narayanan et al. 2021,
# table 1, and Korthikanti et al. 2022, table 5, vanish (checks/speed/step_times, A100); every other published time on
# one is held out from it. Its low end lets MT-NLG 530B in (126 TFLOP/s an A100, Smith et al. 2022).
BEST = "at best 80 to 85 % of a GPU's peak, 95 % of a TPU's (Scaling Book, part 1)"
ON_GPU = (
    "matmul: centred on the iteration times of Narayanan et al. 2021 (table 1) and Korthikanti et al. 2022 (table 5) "
    "on "
    f"A100; {BEST}"
)
ON_TPU = f"matmul: by chip, from published step times of MaxText (python -m checks.speed.step_times --data=DIR); {BEST}"
SOURCES = (
    "attention: FlashAttention-2 reaches 50 to 73 % of an A100's peak forward and less backward (Dao 2023), "
    "FlashAttention-3 up to 75 % of an H100's (Shah et al. 2024)",
    "hbm: 94 % in a plain sum on an H100 (Scaling Book, GPUs, quiz 1)",
    "network: NVLink 370 of 450 GB/s with large messages, 150 with 58 MB (Scaling Book, GPUs); ICI near "
    "its peak with small ones",
    "overlap: our judgement; Megatron-LM of 2021 hid nothing of the gradients, FSDP and XLA hide most",
    "published times were met with other systems' traits; this trainer was never timed on an accelerator (`make gpu` "
    "does)",
)
HBM, ATTENTION = Range(0.7, 0.85, 0.94), Range(0.3, 0.5, 0.7)
GPU_EFFICIENCY = Efficiency(
    Range(0.45, 0.6, 0.85), ATTENTION, HBM, Range(0.35, 0.7, 0.85), Range(0.4, 0.8, 1.0), (ON_GPU, *SOURCES)
)
TPU_EFFICIENCY = Efficiency(
    Range(0.45, 0.6, 0.95), ATTENTION, HBM, Range(0.75, 0.9, 0.98), Range(0.6, 0.85, 1.0), (ON_TPU, *SOURCES)
)
# A TPU's expected share in large products, from published step times of MaxText; solved again from one to three rows a
# chip (checks.speed.step_times --data): .73, .83, .89, .60, .74. A TPU that isn't here has the GPUs' share.
MATMUL_BY_CHIP = {"TPU v4": 0.72, "TPU v5e": 0.83, "TPU v5p": 0.89, "TPU v6e": 0.60, "TPU v7": 0.72}
LOWER_END_MARGIN = 0.15  # how far below it a TPU's programs fall, as a GPU's do
UNKNOWN_RANGE = Range(0.3, 0.6, 0.9)
CPU_EFFICIENCY = Efficiency(
    UNKNOWN_RANGE,
    UNKNOWN_RANGE,
    UNKNOWN_RANGE,
    UNKNOWN_RANGE,
    Range(0.0, 0.0, 0.5),
    ("the peak is a measured product's, the bandwidth a measured copy's; programs share caches, cores and memory",),
)


def default_efficiency(machine: Machine) -> Efficiency:
    """The ranges for this kind of chip before anything is measured on it."""
    default = {"tpu": TPU_EFFICIENCY, "gpu": GPU_EFFICIENCY, "cpu": CPU_EFFICIENCY}[machine_platform(machine)]
    expected = MATMUL_BY_CHIP.get(machine.chip.name, default.matmul.expected)
    if default is not TPU_EFFICIENCY:
        return default
    return dataclasses.replace(default, matmul=Range(expected - LOWER_END_MARGIN, expected, default.matmul.high))


def machine_platform(machine: Machine) -> str:
    """jax's name of the backend: tpu | gpu | cpu."""
    name = machine.chip.name
    return "tpu" if name.startswith("TPU") else "cpu" if name.startswith("CPU") else "gpu"
