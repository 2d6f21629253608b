"""Table of chips: peak FLOP/s by precision, memory, bandwidths. MFU and the planner read this one table.

FLOP/s are dense (vendors also print a sparse figure, twice as large), with float32 accumulation, at the vendor's boost
clock. Bandwidths between chips are for one link in one direction. A CPU's peak is measured.
"""

import dataclasses
import importlib.util
import os
import re
from typing import Any

GIB = 2**30  # memory sold as "80 GB" is 80 GiB less what the driver and ECC keep (1 to 6 %)


@dataclasses.dataclass(frozen=True)
class Chip:
    """One jax device. `flops` by precision in FLOP/s; bandwidths in bytes/s."""

    name: str
    flops: dict[str, float] = dataclasses.field(hash=False)  # so that plans can be cached by their machine
    hbm_bytes: int
    hbm_bytes_per_s: float
    link_bytes_per_s: float  # to other chips over one link, one direction: ICI or NVLink, else PCIe
    links: int  # ICI: links of a chip on the torus; an NVLink switch or PCIe counts as one
    source: str
    given_bytes: int | None = None  # memory measured for a program; None: `usable_bytes` estimates it


def _make_tpu(
    name: str, bf16: float, hbm_gib: int, hbm: float, ici: float, links: int, fp8: float | None = None
) -> Chip:
    """Make a TPU from TFLOP/s, GiB, GB/s, GB/s. ICI is the Scaling Book's (part 2): the raw rate less overhead."""
    rates = {"bfloat16": bf16 * 1e12} | ({"float8": fp8 * 1e12} if fp8 else {})
    return Chip(name, rates, hbm_gib * GIB, hbm * 1e9, ici * 1e9, links, "Google Cloud TPU documentation")


def _make_gpu(
    name: str,
    flops: dict[str, float],
    hbm_gib: int,
    hbm: float,
    link: float,
    source: str = "NVIDIA datasheet",
    links: int = 1,
) -> Chip:
    """Make a GPU from TFLOP/s by precision, GiB, GB/s, GB/s."""
    rates = {precision: rate * 1e12 for precision, rate in flops.items()}
    return Chip(name, rates, hbm_gib * GIB, hbm * 1e9, link * 1e9, links, source)


def _tensor_core_flops(bf16: float, tf32: float, fp32: float, fp8: float | None = None) -> dict[str, float]:
    """TFLOP/s by precision: tensor cores since Ampere run fp16 at the rate of bf16; fp8 came with Ada and Hopper."""
    rates = {"bfloat16": bf16, "float16": bf16, "tensorfloat32": tf32, "float32": fp32}
    return rates | ({"float8": fp8} if fp8 else {})


AMD = "AMD Instinct data sheet"
# Pattern in jax's `device_kind` -> chip. The first match counts, so variants stand before the plain name.
CHIPS = {
    # cloud.google.com/tpu/docs, "System architecture" of each version. v6e: 918 there, 920 (rounded) in the Scaling
    # Book.
    r"TPU v4$": _make_tpu("TPU v4", 275, 32, 1228, 45, 6),
    r"TPU v5( lite|e)$": _make_tpu("TPU v5e", 197, 16, 819, 45, 4),
    r"TPU v5p?$": _make_tpu("TPU v5p", 459, 95, 2765, 90, 6),
    r"TPU v6( lite|e)$": _make_tpu("TPU v6e", 918, 32, 1640, 90, 4),
    # Each chip (2,307 TFLOP/s, 192 GiB, 7,380 GB/s, 1,200 GB/s of ICI both ways) is two jax devices with half of all.
    r"TPU ?(7x|v7x?)$": _make_tpu("TPU v7", 1153.5, 96, 3690, 50, 6, fp8=2307),
    # Blackwell: DGX B200 datasheet, an eighth of the machine's figures, sparse ones halved; HGX B300's likewise. GB200
    # and GB300 NVL72: a 72nd of the rack's. RTX 5090: RTX Blackwell whitepaper (appendix A), float32 accumulation.
    r"GB300": _make_gpu("GB300", _tensor_core_flops(2500, 1250, 80, 5000), 279, 8000, 900, "NVIDIA GB300 NVL72 page"),
    r"GB200": _make_gpu("GB200", _tensor_core_flops(2500, 1250, 80, 5000), 186, 8000, 900, "NVIDIA GB200 NVL72 page"),
    r"B300": _make_gpu("B300", _tensor_core_flops(2250, 1125, 75, 4500), 270, 8000, 900, "NVIDIA HGX B300 page"),
    r"RTX 5090$": _make_gpu("RTX 5090", _tensor_core_flops(209.5, 104.8, 104.8, 419), 32, 1792, 64),
    r"B200": _make_gpu("B200", _tensor_core_flops(2250, 1125, 75, 4500), 180, 8000, 900),
    # Hopper: H100 whitepaper (table 2) and datasheet, H200 datasheet; sparse figures halved.
    r"H200(?! NVL)": _make_gpu("H200 SXM", _tensor_core_flops(989.4, 494.7, 66.9, 1978.9), 141, 4800, 450),
    # H200 NVL: H200 datasheet; its memory and bandwidth were read again (aiwiki.ai, nvidia_h200), its TFLOP/s in no
    # copy. GH200: its datasheet, with 96 GB of HBM3 (read again as feifeibear/LLMRoofline has it).
    # H800 and A800 are an H100 and an A100 with 400 GB/s of NVLink both ways (DeepSeek-V3, section 3.2.2, reaches 160
    # of an H800's 200; FlashMLA's notes have 990 TFLOP/s and 3.35 TB/s). H20: as resellers print it.
    r"H200 NVL": _make_gpu(
        "H200 NVL",
        _tensor_core_flops(835.5, 417.5, 60, 1670.5),
        141,
        4800,
        450,
        "NVIDIA H200 datasheet; TFLOP/s as commonly quoted, unconfirmed",
    ),
    r"GH200 480GB": _make_gpu("GH200", _tensor_core_flops(989.4, 494.7, 66.9, 1978.9), 96, 4000, 450),
    r"H800": _make_gpu(
        "H800", _tensor_core_flops(989.4, 494.7, 66.9, 1978.9), 80, 3350, 200, "H100's, NVLink 400 GB/s"
    ),
    r"H20$": _make_gpu("H20", _tensor_core_flops(148, 74, 44, 296), 96, 4000, 450, "resellers' figures of HGX H20"),
    r"H100 NVL": _make_gpu("H100 NVL", _tensor_core_flops(835.5, 417.5, 60, 1670.5), 94, 3900, 300),
    r"H100 PCIe": _make_gpu("H100 PCIe", _tensor_core_flops(756.5, 378, 51.2, 1513), 80, 2000, 300),
    r"H100": _make_gpu("H100 SXM", _tensor_core_flops(989.4, 494.7, 66.9, 1978.9), 80, 3350, 450),
    # Ampere: A100 40 GB and 80 GB datasheets, A10 and RTX A6000 datasheets, GA102 whitepaper (RTX 3090). A10G: of its
    # 70 and 35 TFLOP/s products reached 69.5 and 34.7 (zzc0721/torch-performance-test-data, issue 126).
    r"A100 80GB PCIe": _make_gpu("A100 80GB PCIe", _tensor_core_flops(312, 156, 19.5), 80, 1935, 300),
    r"A100-SXM4-80GB": _make_gpu("A100 80GB SXM", _tensor_core_flops(312, 156, 19.5), 80, 2039, 300),
    r"A100-(SXM4|PCIE)-40GB": _make_gpu("A100 40GB", _tensor_core_flops(312, 156, 19.5), 40, 1555, 300),
    r"A800-SXM4-80GB": _make_gpu("A800", _tensor_core_flops(312, 156, 19.5), 80, 2039, 200, "A100's, NVLink 400 GB/s"),
    r"A10G$": _make_gpu("A10G", _tensor_core_flops(70, 35, 31.5), 24, 600, 32, "NVIDIA A10G datasheet (AWS G5)"),
    r"A10$": _make_gpu("A10", _tensor_core_flops(125, 62.5, 31.2), 24, 600, 32),
    r"RTX A6000$": _make_gpu("RTX A6000", _tensor_core_flops(154.8, 77.4, 38.7), 48, 768, 32),
    r"RTX 3090$": _make_gpu("RTX 3090", _tensor_core_flops(71, 35.6, 35.6), 24, 936, 32),
    # Ada: L40S, L40, L4 and RTX 6000 Ada datasheets, Ada whitepaper (appendix A, RTX 4090).
    r"L40S$": _make_gpu("L40S", _tensor_core_flops(362, 183, 91.6, 733), 48, 864, 32),
    r"L40$": _make_gpu("L40", _tensor_core_flops(181, 90.5, 90.5, 362), 48, 864, 32),
    r"RTX 6000 Ada": _make_gpu("RTX 6000 Ada", _tensor_core_flops(364.2, 182.1, 91.1, 728.5), 48, 960, 32),
    r"L4$": _make_gpu("L4", _tensor_core_flops(121, 60, 30.3, 242.5), 24, 300, 32),
    r"RTX 4090$": _make_gpu("RTX 4090", _tensor_core_flops(165.2, 82.6, 82.6, 330.3), 24, 1008, 32),
    # AMD: data sheets of MI300X, MI325X and MI355X, matrix figures without sparsity; read again in 2026 as others copy
    # them (fp8, memory, links; 304 and 256 units: ROCm's "AMD GPU specifications"). All seven links of a GPU together
    # (128 and 153.6 GB/s both ways each), as a node is fully connected. CDNA 4 has no unit for tf32. MI355X: 8,192 fp8
    # FLOP a clock in each of 256 units at 2.4 GHz (AMD at ISSCC 2026).
    r"MI300X": _make_gpu("MI300X", _tensor_core_flops(1307.4, 653.7, 163.4, 2614.9), 192, 5300, 448, AMD),
    r"MI325X": _make_gpu("MI325X", _tensor_core_flops(1307.4, 653.7, 163.4, 2614.9), 256, 6000, 448, AMD),
    r"MI355X": _make_gpu(
        "MI355X", {"bfloat16": 2516.6, "float16": 2516.6, "float32": 157.3, "float8": 5033.2}, 288, 8000, 537.6, AMD
    ),
    # Trainium2: AWS Neuron documentation, "Amazon EC2 Trn2 architecture": 16 chips in a torus of 4 x 4, 1,024 GB/s of
    # NeuronLink a chip within an instance, both ways over four links (an UltraServer's ring of instances has 256 more).
    r"(trn2|Trainium2)$": _make_gpu(
        "Trainium2", _tensor_core_flops(667, 667, 181, 1299), 96, 2900, 128, "AWS Neuron documentation", links=4
    ),
    # Volta and Turing: V100 and T4 datasheets. Their tensor cores have only fp16.
    r"V100-PCIE-16GB": _make_gpu("V100 PCIe 16GB", {"float16": 112, "float32": 14}, 16, 900, 16),
    r"V100-PCIE-32GB": _make_gpu("V100 PCIe 32GB", {"float16": 112, "float32": 14}, 32, 900, 16),
    r"V100-SXM2-16GB": _make_gpu("V100 SXM2 16GB", {"float16": 125, "float32": 15.7}, 16, 900, 150),
    r"V100-SXM[23]-32GB": _make_gpu("V100 SXM2 32GB", {"float16": 125, "float32": 15.7}, 32, 900, 150),
    r"T4$": _make_gpu("T4", {"float16": 65, "float32": 8.1}, 16, 320, 16),
}


# Bytes/s to the host's memory, one direction: PCIe of 16 lanes, less its encoding (128b/130b of 32, 16 and 8 GT/s; the
# generation by the chip's datasheet). Of TPUs and Trainium nothing is published, and a CPU's memory is the host's.
# Grace's is NVLink-C2C, 900 GB/s both ways.
PCIE = {
    "GB200 GB300 GH200": 450.0e9, "B200 B300 H200 H100 H800 H20 5090 MI300X MI325X MI355X": 63.0e9,
    "A100 A800 A10 A10G A6000 3090 L40S L40 L4 6000 4090": 31.5e9, "V100 T4": 15.75e9,
}  # fmt: skip


def host_bytes_per_s(chip: Chip) -> float | None:
    """Bytes/s between a chip and its host's memory, one direction; None if the table lacks it."""
    words = chip.name.split()
    return next((rate for names, rate in PCIE.items() if set(names.split()) & set(words)), None)


# CUDA's compute capability by chip (CUDA programming guide, "GPU compute capabilities"); (0, 0): has no CUDA.
CAPABILITIES = {
    "5090": (12, 0), "B300 GB300": (10, 3), "B200 GB200": (10, 0), "H200 H100 GH200 H800 H20": (9, 0),
    "L40S L40 L4 4090 6000": (8, 9), "A10 A10G A6000 3090": (8, 6), "A100 A800": (8, 0), "T4": (7, 5), "V100": (7, 0),
    "MI300X MI325X MI355X Trainium2": (0, 0),
}  # fmt: skip


def compute_capability(chip: Chip) -> tuple[int, int] | None:
    """CUDA's compute capability of a GPU, (0, 0) of another maker's; None if the table lacks the chip."""
    words = set(chip.name.split())
    return next((capability for names, capability in CAPABILITIES.items() if words & set(names.split())), None)


def find_chip(device_kind: str) -> Chip | None:
    """Find the chip behind jax's `device_kind` ('NVIDIA H100 80GB HBM3', 'TPU v5 lite'); None if the table lacks it.

    A MIG slice has no entry either: its name doesn't say which share of the chip it has.
    """
    if " MIG " in device_kind:
        return None
    return next((chip for pattern, chip in CHIPS.items() if re.search(rf"\b(?:{pattern})", device_kind)), None)


def host_memory_bytes() -> int:
    """This host's memory, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def capacity_bytes(device: Any) -> int:
    """Memory in bytes that one jax device can give a program; 0 if unknown.

    The device's own answer counts, else the table's value. CPU devices of one process share the host's memory.
    """
    if device.platform == "cpu":
        return host_memory_bytes() // len(device.client.local_devices())
    limit = (device.memory_stats() or {}).get("bytes_limit", 0)
    chip = find_chip(device.device_kind)
    return int(limit) or (chip.hbm_bytes if chip else 0)


# Passes of bf16 per product on a TPU (documentation of jax.lax.Precision: HIGHEST, and HIGH for tensorfloat32).
MATMUL_PASSES = {"float32": 6, "tensorfloat32": 3}


def table_flops(device_kind: str, dtype: Any) -> tuple[float, str] | None:
    """`unit_flops` of the chip behind jax's `device_kind`; None if the table lacks the chip."""
    chip = find_chip(device_kind)
    return unit_flops(chip, dtype) if chip else None


def unit_flops(chip: Chip, dtype: Any) -> tuple[float, str] | None:
    """(FLOP/s of the unit that multiplies `dtype` or "tensorfloat32", source of the figure); None without such a unit.

    float32 means all 32 bits, as precision `fp32` asks for. XLA's own default is TF32 on NVIDIA's tensor cores since
    Ampere and one bf16 pass on TPUs (JAX documentation, "Matmul precision"). TPUs have no wider unit: `MATMUL_PASSES`.
    """
    name = dtype_name(dtype)
    wider = {"tensorfloat32": ("tensorfloat32", "float32")}.get(name, (name,))
    unit = next((unit for unit in wider if unit in chip.flops), None)
    if unit is not None:
        return chip.flops[unit], f"{chip.name}, {unit}, dense: {chip.source}"
    if name not in MATMUL_PASSES or "bfloat16" not in chip.flops:
        return None
    passes = MATMUL_PASSES[name]
    source = f"{chip.name}, {name} in {passes} passes of bfloat16, dense: {chip.source}"
    return chip.flops["bfloat16"] / passes, source


def dtype_name(dtype: Any) -> str:
    """The key of a dtype in `Chip.flops`, such as 'bfloat16'; all float8 formats share the key and rate of 'float8'."""
    import jax.numpy as jnp

    if dtype == "tensorfloat32":
        return dtype

    name = jnp.dtype(dtype).name
    return "float8" if name.startswith("float8") else name


def expects_accelerator() -> bool:
    """Whether jax will look for an accelerator here. Does not start jax, which would take the device's memory."""
    if os.environ.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        return False
    plugins = importlib.util.find_spec("jax_plugins")
    places = (plugins.submodule_search_locations or []) if plugins else []
    entries = [entry for place in places for entry in os.scandir(place)]
    return bool(entries) or importlib.util.find_spec("libtpu") is not None
