"""Machines to plan for: a chip of `chips.CHIPS`, the number of chips on fast links, and the network beyond.

Prices are not listed: the user states them. `source` says where a network is our assumption.
"""

import dataclasses
import functools
import math
import pathlib
from typing import Any

from scalelab.config.fields import fields_alone, kept_hash
from scalelab.errors import BadInput, nearest_hint, nearest_name
from scalelab.hardware import chips
from scalelab.hardware.chips import Chip
from scalelab.hardware.measured import measured_copy_bytes_per_s, measured_matmul_flops
from scalelab.untrusted.documents import read_document


@dataclasses.dataclass(frozen=True)
class Machine:
    """Devices of one chip. `devices_per_node`: devices joined by fast links; for TPUs the chips of the largest slice.

    `node_bytes_per_s`: a device's share of the network between nodes (TPUs: between slices), one direction.
    `price_per_hour`: of a device, in the user's currency; None: not stated.
    """

    __hash__, __getstate__ = kept_hash, fields_alone

    chip: Chip
    devices_per_node: int
    node_bytes_per_s: float
    price_per_hour: float | None
    source: str
    host_bytes: int | None = None  # memory of the host that a node's devices share; None: not known


DGX_SOURCE = "{}: 8 GPUs, {} Gb/s InfiniBand a GPU (NVIDIA's user guide)"
NVL_SOURCE = "NVIDIA {} NVL72: 72 GPUs on NVLink, {} Gb/s a GPU (ConnectX-{})"
AMD_SOURCE = (
    "AMD {} platform: 8 fully connected GPUs; 400 Gb/s each, and attention and products that reach an NVIDIA GPU's "
    "shares of the peak, are our assumption"
)
TPU_SOURCE = "Google Cloud TPU documentation, {}: {} Gb/s of data center network a chip"
ASSUMED_SOURCE = "NVIDIA names no node of these: {} that share {} Gb/s are our assumption"


def _assumed_machine(chip: str, devices: int, gbits: int) -> tuple[str, int, float, str]:
    """A row of `KNOWN_MACHINES` for a chip without a reference node of NVIDIA."""
    return chip, devices, gbits / devices, ASSUMED_SOURCE.format(devices, gbits)


# Short name -> (the chip's name, devices a node, Gb/s of network a device, source).
KNOWN_MACHINES: dict[str, tuple[str, int, float, str]] = {
    "v4": ("TPU v4", 4096, 50, "TPU v4 has no published figure: 50 Gb/s a chip, as v5p, is our assumption"),
    "v5e": ("TPU v5e", 256, 25, TPU_SOURCE.format("v5e", "6,400 / 256")),
    "v5p": ("TPU v5p", 6144, 50, TPU_SOURCE.format("v5p", 50)),
    "v6e": ("TPU v6e", 256, 100, TPU_SOURCE.format("v6e", "25,600 / 256")),
    "v7": ("TPU v7", 18432, 50, TPU_SOURCE.format("TPU7x", "100 a chip of two devices")),
    "gb300": ("GB300", 72, 800, NVL_SOURCE.format("GB300", 800, 8)),
    "gb200": ("GB200", 72, 400, NVL_SOURCE.format("GB200", 400, 7)),
    "b300": ("B300", 8, 800, DGX_SOURCE.format("DGX B300", 800)),
    "b200": ("B200", 8, 400, DGX_SOURCE.format("DGX B200", 400)),
    "h200": ("H200 SXM", 8, 400, DGX_SOURCE.format("DGX H200", 400)),
    "h100": ("H100 SXM", 8, 400, DGX_SOURCE.format("DGX H100", 400)),
    "a100": ("A100 80GB SXM", 8, 200, DGX_SOURCE.format("DGX A100", 200)),
    "a100-40gb": ("A100 40GB", 8, 200, DGX_SOURCE.format("DGX A100", 200)),
    "v100": ("V100 SXM2 32GB", 8, 50, DGX_SOURCE.format("DGX-1", "four ports of 100, so 50")),
    "v100-16gb": ("V100 SXM2 16GB", 8, 50, DGX_SOURCE.format("DGX-1", "four ports of 100, so 50")),
    "gh200": _assumed_machine("GH200", 1, 400),
    "h800": (
        "H800",
        8,
        400,
        "DeepSeek-V3, sections 3.1 and 3.2.2: 8 GPUs on NVLink, InfiniBand of 50 GB/s between nodes",
    ),
    "h20": _assumed_machine("H20", 8, 3200),
    "a800": _assumed_machine("A800", 8, 1600),
    "mi300x": ("MI300X", 8, 400, AMD_SOURCE.format("MI300X")),
    "mi325x": ("MI325X", 8, 400, AMD_SOURCE.format("MI325X")),
    "mi355x": ("MI355X", 8, 400, AMD_SOURCE.format("MI355X")),
    "trn2": (
        "Trainium2",
        16,
        200,
        "AWS, trn2.48xlarge: 16 chips, 3.2 Tb/s of EFA; jax's kernels and shares are a GPU's",
    ),
    "h200-nvl": _assumed_machine("H200 NVL", 4, 400),
    "h100-nvl": _assumed_machine("H100 NVL", 2, 200),
    "h100-pcie": _assumed_machine("H100 PCIe", 2, 200),
    "a100-pcie": _assumed_machine("A100 80GB PCIe", 2, 200),
    "v100-pcie": _assumed_machine("V100 PCIe 32GB", 4, 100),
    "v100-pcie-16gb": _assumed_machine("V100 PCIe 16GB", 4, 100),
    "l40s": _assumed_machine("L40S", 4, 100),
    "l40": _assumed_machine("L40", 4, 100),
    "l4": _assumed_machine("L4", 4, 100),
    "a10": _assumed_machine("A10", 4, 100),
    "a10g": _assumed_machine("A10G", 4, 100),
    "t4": _assumed_machine("T4", 4, 100),
    "a6000": _assumed_machine("RTX A6000", 4, 10),
    "rtx6000ada": _assumed_machine("RTX 6000 Ada", 4, 10),
    "rtx5090": _assumed_machine("RTX 5090", 4, 10),
    "rtx4090": _assumed_machine("RTX 4090", 4, 10),
    "rtx3090": _assumed_machine("RTX 3090", 4, 10),
}
ALIASES = {  # other names of the same machine
    "7x": "v7", "v7x": "v7", "trainium2": "trn2", "a10080gb": "a100", "h10080gb": "h100", "v10032gb": "v100",
}  # fmt: skip
# Google's names of slices, and how many of the number in a name are a chip's: TensorCores on v4 and v5p, else chips.
SLICES = {"v4": ("v4", 2), "v5p": ("v5p", 2), "v5e": ("v5e", 1), "v5litepod": ("v5e", 1), "v6e": ("v6e", 1)}
# GB of system memory of NVIDIA's own nodes (user guides of DGX B200, H100/H200, A100 of 640 and 320 GB, and DGX-1; a
# B200's can be doubled). Of other nodes, and of TPUs' hosts, the table knows nothing.
HOST_GB = {"b200": 2000, "h200": 2000, "h100": 2000, "a100": 2000, "a100-40gb": 1000, "v100": 512, "v100-16gb": 512}
CHIP_FIELDS = ("name", "flops", "hbm_bytes", "hbm_bytes_per_s", "link_bytes_per_s", "links")
NODE_FIELDS = ("devices_per_node", "node_bytes_per_s", "price_per_hour", "source", "host_bytes")
MACHINE_FILE_HELP = (
    'your own: FILE.json with name, flops (FLOP/s by precision: {"bfloat16": 1e15, "float32": …}), hbm_bytes, '
    "hbm_bytes_per_s, link_bytes_per_s (one link, one direction), links, devices_per_node, "
    "node_bytes_per_s (network, a device) "
    "and, if you like, price_per_hour, source and host_bytes (memory of a node's host); "
    "or with base (a known name) and what differs from it"
)


def load_machine(name: str) -> Machine:
    """A machine by its short name ("h100"), chip's name, jax's `device_kind`, or a JSON file (`MACHINE_FILE_HELP`).

    "cpu" is this host, measured. BadInput for any other name, and for a file with a missing or unknown field.
    """
    if name.endswith(".json"):
        return _read_machine_file(pathlib.Path(name))
    return this_cpu() if name.lower() == "cpu" else _known_machine(name)


def _known_machine(name: str) -> Machine:
    plain, known_chip = _plain_name(name), chips.find_chip(name)
    plain = ALIASES.get(plain, plain)
    for short, (chip, devices, gbits, source) in KNOWN_MACHINES.items():
        if plain in (_plain_name(short), _plain_name(chip)) or (known_chip and known_chip.name == chip):
            host_bytes = HOST_GB[short] * 10**9 if short in HOST_GB else None
            return Machine(_chips_by_name()[chip], devices, gbits * 1e9 / 8, None, source, host_bytes)
    _refuse_slice(name)
    near = nearest_name(name, [*KNOWN_MACHINES, "cpu"])
    hint = f"; did you mean {near!r}?" if near else ""
    known = ", ".join(KNOWN_MACHINES)
    raise BadInput(f"--hardware={name}: no such machine{hint}; known: {known}, cpu; {MACHINE_FILE_HELP}")


def _refuse_slice(name: str) -> None:
    """Raise BadInput for the name of a TPU slice, as v5p-128, with the chip and the number of chips that it means."""
    kind, dash, number = name.lower().removeprefix("tpu-").rpartition("-")
    if not dash or kind not in SLICES or not number.isdecimal():
        return
    chip, cores = SLICES[kind]
    chips_of_slice = max(1, int(number) // cores)
    raise BadInput(
        f"--hardware={name} is a slice of {chips_of_slice} chips; nearest: --hardware={chip} --devices={chips_of_slice}"
    )


def _plain_name(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


@functools.cache
def _chips_by_name() -> dict[str, Chip]:
    return {chip.name: chip for chip in chips.CHIPS.values()}


@functools.cache
def this_cpu() -> Machine:
    """This host as one device: a measured product and a measured copy (0.3 s on 2 cores), and its memory."""
    rate = measured_copy_bytes_per_s()
    flops = {"float32": measured_matmul_flops()}
    chip = Chip("CPU", flops, chips.host_memory_bytes(), rate, rate, 1, "measured on this host")
    source = "measured; a network of 10 Gb/s is our assumption"
    return Machine(chip, 1, 1.25e9, None, source, chips.host_memory_bytes())


def _read_object(path: pathlib.Path) -> dict[str, Any]:
    try:
        content = read_document(path, follow=True)
    except OSError as error:
        raise BadInput(f"--hardware={path}: {error.strerror}") from None
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"--hardware={path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadInput(f"--hardware={path} does not hold a JSON object; {MACHINE_FILE_HELP}")
    return content


def _read_machine_file(path: pathlib.Path) -> Machine:
    stated = _read_object(path)
    fields: dict[str, Any] = {"links": 1, "price_per_hour": None, "source": str(path), "host_bytes": None}
    if "base" in stated:
        base = _known_machine(str(stated.pop("base")))
        fields |= {key: getattr(base.chip, key) for key in CHIP_FIELDS} | {
            key: getattr(base, key) for key in NODE_FIELDS
        }
        fields["source"] = f"{path}, from {base.chip.name}: {base.source}"
    for key in stated:
        if key not in CHIP_FIELDS + NODE_FIELDS:
            raise BadInput(f"--hardware={path}: {key!r} is not a field{nearest_hint(key, CHIP_FIELDS + NODE_FIELDS)}")
    fields |= stated
    missing = [key for key in CHIP_FIELDS + NODE_FIELDS if key not in fields]
    if missing:
        raise BadInput(f"--hardware={path} lacks {', '.join(missing)}; {MACHINE_FILE_HELP}")
    _check_fields(path, fields)
    flops = {precision: float(rate) for precision, rate in fields["flops"].items()}
    chip = Chip(
        str(fields["name"]),
        flops,
        int(fields["hbm_bytes"]),
        float(fields["hbm_bytes_per_s"]),
        float(fields["link_bytes_per_s"]),
        int(fields["links"]),
        str(fields["source"]),
    )
    price = None if fields["price_per_hour"] is None else float(fields["price_per_hour"])
    host_bytes = None if fields["host_bytes"] is None else int(fields["host_bytes"])
    return Machine(
        chip,
        int(fields["devices_per_node"]),
        float(fields["node_bytes_per_s"]),
        price,
        str(fields["source"]),
        host_bytes,
    )


PRECISIONS = ("float32", "tensorfloat32", "bfloat16", "float16", "float8")
COUNTS = ("links", "devices_per_node")
SMALLEST, LARGEST = 1, 1e30  # of FLOP/s and bytes: beyond them seconds and their products overflow


def _check_fields(path: pathlib.Path, fields: dict[str, Any]) -> None:
    """Raise BadInput for values that are not finite positive numbers, or counts that are not whole; and for precisions
    that no policy multiplies in.
    """
    flops = fields["flops"]
    if not isinstance(flops, dict) or not flops:
        raise BadInput(f'--hardware={path}: flops={flops!r} is not FLOP/s by precision, e.g. {{"bfloat16": 1e15}}')
    for precision in flops:
        if precision not in PRECISIONS:
            raise BadInput(f"--hardware={path}: flops of {precision!r}{nearest_hint(precision, PRECISIONS)}")
    numbers = {f"flops.{key}": value for key, value in flops.items()}
    numeric = (*CHIP_FIELDS[2:], *NODE_FIELDS[:3], "host_bytes")
    optional = ("price_per_hour", "host_bytes")
    numbers |= {key: fields[key] for key in numeric if fields[key] is not None or key not in optional}
    for key, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise BadInput(f"--hardware={path}: {key}={value!r} is not a number above 0")
        if not math.isfinite(value):
            raise BadInput(f"--hardware={path}: {key}={value!r} is not finite")
        if key not in (*COUNTS, "price_per_hour") and not SMALLEST <= value <= LARGEST:
            nearest = SMALLEST if value < SMALLEST else LARGEST
            reason = f"is outside {SMALLEST} to {LARGEST:g}; nearest: {nearest:g}"
            raise BadInput(f"--hardware={path}: {key}={value!r} {reason}")
        if key in COUNTS and value != int(value):
            raise BadInput(f"--hardware={path}: {key}={value!r} is not a whole number; nearest: {max(1, round(value))}")
