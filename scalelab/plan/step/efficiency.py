"""The share of a datasheet's figures that programs reach, as ranges with sources: the planner's only measured numbers.

A range is not a confidence interval: its ends are what published systems reach at worst and at best with large models.
"""

import dataclasses
import math
import re

from scalelab.config.fields import fields_alone, kept_hash
from scalelab.errors import BadInput
from scalelab.hardware.chips import Chip, compute_capability, unit_flops
from scalelab.plan.machine.machine import Machine
from scalelab.plan.step.device_share import Operation


@dataclasses.dataclass(frozen=True)
class Range:
    """A share between 0 and 1: what is expected, and how low and how high it may be."""

    low: float
    expected: float
    high: float


GROUPED = "grouped"  # products of routed experts
WIDE_UNITS = ("float32", "tensorfloat32")
NARROW = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}  # policies and units, the first that a chip has


@dataclasses.dataclass(frozen=True)
class Curve:
    """Share of the peak by size: `share` of large products (times its range), half as much at `half_side`."""

    share: float
    half_side: float = 0.0

    def at(self, side: float) -> float:
        """The share where the smallest side is `side`."""
        return self.share if math.isinf(side) else self.share * side / (side + self.half_side)


@dataclasses.dataclass(frozen=True)
class Efficiency:
    """Shares of the datasheet: `matmul` of the unit's FLOP/s in large products, `attention` of it in fused attention,
    `hbm` and `network` of bandwidths, and `overlap`: of the traffic that can be hidden behind computing, how much is.
    `measured` multiplies all four rates: 1 until runs were measured (calibrate.py). `experts` multiplies those of
    routed experts' products, passes and exchanges. `curves`: (kind, curve), of products ("" in 16 bits, "float8",
    "float32", "tensorfloat32", "grouped") and of kernels of attention, in shares of `matmul` and `attention`; kinds
    that lack one have the whole.
    """

    __hash__, __getstate__ = kept_hash, fields_alone

    matmul: Range
    attention: Range
    hbm: Range
    network: Range
    overlap: Range
    sources: tuple[str, ...]
    measured: Range = Range(1.0, 1.0, 1.0)
    experts: Range = Range(1.0, 1.0, 1.0)
    curves: tuple[tuple[str, Curve], ...] = ()

    def relative_share(self, op: Operation) -> float:
        """The share of its unit's peak that an operation reaches, over `attention` or `matmul`."""
        kind = op.kernel or ("float8" if op.unit.startswith("float8") else op.unit if op.unit in WIDE_UNITS else "")
        if op.name.startswith("attention") and not op.kernel:
            return 1.0
        curves = dict(self.curves)
        curve = curves.get(GROUPED if op.experts and GROUPED in curves else kind)
        return curve.at(op.least_side) if curve else 1.0


# Of the datasheet's FLOP/s and bandwidths. `matmul` was centred on A100s (Narayanan et al. 2021, table 1; Korthikanti
# et al. 2022, table 5); `curves` multiply it, fitted on all published times. Its low end lets MT-NLG 530B in (126
# TFLOP/s an A100, Smith et al. 2022).
BEST = "at best 80 to 85 % of a GPU's peak, 95 % of a TPU's (Scaling Book, part 1)"
ON_GPU = (
    "matmul and attention: by generation, size, unit and kernel, fitted on published step times of 16 systems "
    f"(checks/results/step_times.md); {BEST}"
)
ON_TPU = f"matmul: by chip, from published step times of MaxText (python -m checks.speed.step_times --data=DIR); {BEST}"
SOURCES = (
    "attention: FlashAttention-2 reaches 50 to 73 % of an A100's peak forward and less backward (Dao 2023), "
    "FlashAttention-3 up to 75 % of an H100's (Shah et al. 2024)",
    "hbm: 94 % in a plain sum on an H100 (Scaling Book, GPUs, quiz 1)",
    "network: NVLink 370 of 450 GB/s with large messages, 150 with 58 MB (Scaling Book, GPUs); ICI near "
    "its peak with small ones",
    "overlap: our judgement; Megatron-LM of 2021 hid nothing of the gradients, FSDP and XLA hide most",
    "this trainer's own passes: five steps on one H100 (checks/results/gpu.md), planned 31 % too fast to 18 % too slow",
)
# Routed experts: their ends hold what one config's rows of equal work differ by (gpt-oss 120B, 1.2 times as fast as
# planned to half as fast). TPU's curve and passes of rows: fitted on MaxText's eight rows of v7 (experts.py).
EXPERTS = Range(0.45, 1.0, 1.3)
HBM, ATTENTION = Range(0.7, 0.85, 0.94), Range(0.3, 0.5, 0.7)
GPU_EFFICIENCY = Efficiency(
    Range(0.45, 0.6, 0.85),
    ATTENTION,
    HBM,
    Range(0.35, 0.7, 0.85),
    Range(0.4, 0.8, 1.0),
    (ON_GPU, *SOURCES),
    experts=EXPERTS,
)
TPU_EFFICIENCY = Efficiency(
    Range(0.45, 0.6, 0.95),
    ATTENTION,
    HBM,
    Range(0.75, 0.9, 0.98),
    Range(0.6, 0.85, 1.0),
    (ON_TPU, *SOURCES),
    experts=EXPERTS,
    curves=((GROUPED, Curve(1.0, 700)),),
)
# A TPU's expected share in large products, from published step times of MaxText; solved again from one to three rows a
# chip (checks.speed.step_times --data): .73, .83, .89, .60, .74. A TPU that isn't here has the GPUs' share.
MATMUL_BY_CHIP = {"TPU v4": 0.72, "TPU v5e": 0.83, "TPU v5p": 0.89, "TPU v6e": 0.60, "TPU v7": 0.72}
# cuDNN's attention falls with length as it does in Shah et al. 2024 (figures 5 and 6, H100, heads of 128): 315 TFLOP/s
# forward under a causal mask at 512 tokens, 518 at 4,096, 539 at 16,384; backward 305, 499 and 516. The figures were
# read as others transcribed them.
# Of GPUs by generation, fitted (python -m checks.speed.step_times --data=DIR --fit): the share of `matmul`, .6, that
# products reach by their smallest side, and of `attention`, .5, that kernels do by length.
WIDE_CURVES = (("float32", Curve(1.036)), ("tensorfloat32", Curve(0.843)))  # one row each, of this trainer on an H100
AMPERE = (("", Curve(1.086, 140)), ("flash2", Curve(0.682, 254)), *WIDE_CURVES)
HOPPER = (
    ("", Curve(1.019, 168)), ("float8", Curve(1.166, 242)), ("flash2", Curve(0.382, 313)), ("cudnn", Curve(0.962, 350)),
    *WIDE_CURVES,
)  # fmt: skip
# No row in 16 bits or with FlashAttention 2: as Hopper's.
BLACKWELL = (
    ("", Curve(1.019, 168)), ("float8", Curve(0.976, 256)), ("flash2", Curve(0.382, 313)), ("cudnn", Curve(0.852, 350)),
    *WIDE_CURVES,
)  # fmt: skip
# A chip's products and attention over those of its generation: median over its dense rows of what makes the expected
# time the published one (7 rows of GB200, 4 of GB300, all of Megatron-Bridge; none with experts). Their peaks in print
# are alike, their power is 1,200 and 1,400 W.
SHARE_BY_GPU = {"GB200": 0.92, "GB300": 1.09}
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
    if default is GPU_EFFICIENCY:
        share = SHARE_BY_GPU.get(machine.chip.name, 1.0)
        matmul, attention = (_scaled(each, share) for each in (default.matmul, default.attention))
        return dataclasses.replace(default, matmul=matmul, attention=attention, curves=_gpu_curves(machine.chip))
    if default is not TPU_EFFICIENCY:
        return default
    return dataclasses.replace(default, matmul=Range(expected - LOWER_END_MARGIN, expected, default.matmul.high))


def _scaled(of: Range, factor: float) -> Range:
    return Range(*(factor * end for end in dataclasses.astuple(of)))


def _gpu_curves(chip: Chip) -> tuple[tuple[str, Curve], ...]:
    """Of its generation; an Ampere's for what is older or unknown."""
    generation = (compute_capability(chip) or (8, 0))[0]
    if generation > 9 or re.search(r"B[23]00", chip.name):
        return BLACKWELL
    return HOPPER if generation == 9 or re.match(r"G?H\d", chip.name) else AMPERE


def machine_platform(machine: Machine) -> str:
    """jax's name of the backend: tpu | gpu | cpu."""
    name = machine.chip.name
    return "tpu" if name.startswith("TPU") else "cpu" if name.startswith("CPU") else "gpu"


def peak_of_unit(machine: Machine, unit: str) -> tuple[float, str]:
    """(peak FLOP/s of the unit that multiplies `unit` numbers, its name); without an fp8 unit fp8 is multiplied wider.

    A CPU multiplies everything as fp32. BadInput where the chip has no unit for it.
    """
    wider = ("float32",) if machine_platform(machine) == "cpu" else ("bfloat16",) if unit.startswith("float8") else ()
    peak = next(filter(None, (unit_flops(machine.chip, form) for form in (unit, *wider))), None)
    if peak is None:
        known = ", ".join(machine.chip.flops)
        nearest = next((name for name in NARROW if NARROW[name] in machine.chip.flops), "fp32")
        raise BadInput(
            f"precision: {machine.chip.name} has no unit for {unit} products; it multiplies {known}; nearest: "
            f"--config.precision.name={nearest}"
        )
    return peak
