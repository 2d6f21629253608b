"""Absent devices to compile for: TPU slices and NVIDIA GPUs as topologies, CPUs as fake devices.

jax's compilers for them are optional extras that a user installs (`EXTRAS`).
"""

import importlib.util
import math
from typing import Any, NamedTuple

from scalelab.errors import BadInput
from scalelab.plan.machine.machine import Machine

TPUS = {"TPU v4": "v4", "TPU v5e": "v5e", "TPU v5p": "v5p", "TPU v6e": "v6e"}
FLAT = {"v5e", "v6e"}  # slices on a torus of two axes; the others have three
# Chips of the slices that are sold (Google Cloud TPU documentation); with three axes there are larger ones too.
SLICES: dict[int, dict[int, tuple[int, ...]]] = {
    2: {1: (1, 1), 4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16), 256: (16, 16)},
    3: {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4)},
}
LONGEST = 28  # chips along the longest axis of v5p's pod, 16 x 20 x 28


class Gpu(NamedTuple):
    """Facts on an NVIDIA chip for the compiler (CUDA programming guide, "Technical specifications"; whitepapers)."""

    capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    clock_ghz: float
    shared_bytes: int  # per multiprocessor; a block may request 1 KiB less
    name: str  # jax's device_kind

    @property
    def threads(self) -> int:
        """Largest number of resident threads of a multiprocessor: 1,536 since Ampere on chips without HBM."""
        return 2048 if self.capability[1] == 0 else 1536


GPUS = {
    "B200": Gpu((10, 0), 148, 126 << 20, 1.965, 228 << 10, "NVIDIA B200"),
    "H100 SXM": Gpu((9, 0), 132, 50 << 20, 1.98, 228 << 10, "NVIDIA H100 80GB HBM3"),
    "H100 PCIe": Gpu((9, 0), 114, 50 << 20, 1.755, 228 << 10, "NVIDIA H100 PCIe"),
    "H200 SXM": Gpu((9, 0), 132, 50 << 20, 1.98, 228 << 10, "NVIDIA H200"),
    "A100 80GB SXM": Gpu((8, 0), 108, 40 << 20, 1.41, 164 << 10, "NVIDIA A100-SXM4-80GB"),
    "A100 40GB": Gpu((8, 0), 108, 40 << 20, 1.41, 164 << 10, "NVIDIA A100-SXM4-40GB"),
    "L40S": Gpu((8, 9), 142, 96 << 20, 2.52, 100 << 10, "NVIDIA L40S"),
    "RTX 4090": Gpu((8, 9), 128, 72 << 20, 2.52, 100 << 10, "NVIDIA GeForce RTX 4090"),
}
EXTRAS = {"tpu": ("plan-tpu", ("libtpu",)), "gpu": ("plan-cuda", ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"))}


def compiler_platform(machine: Machine) -> str:
    """tpu | gpu | cpu, as jax names backends. BadInput for a chip that no compiler takes without a device."""
    name = machine.chip.name
    known = {name: "tpu" for name in TPUS} | {name: "gpu" for name in GPUS} | {"CPU": "cpu"}
    if name not in known:
        raise BadInput(
            f"--compile: no compiler here takes {name} without a device; it takes {', '.join([*TPUS, *GPUS])}, and cpu "
            "(--hardware=cpu: fake devices, any number)"
        )
    return known[name]


def check_installed(machine: Machine) -> None:
    """Raise BadInput, with the install command, where the machine's compiler isn't installed."""
    if compiler_platform(machine) == "cpu":
        return
    extra, modules = EXTRAS[compiler_platform(machine)]
    if not any(_is_installed(module) for module in modules):
        raise BadInput(
            f"--compile for {machine.chip.name} needs jax's compiler for it, which is not installed: pip install -c "
            f"constraints.txt '.[{extra}]'; or --hardware=cpu, which compiles the same step for fake devices"
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent isn't there
        return False


def count_slices(machine: Machine, devices: int) -> int:
    """Least number of slices that hold so many devices; 1 for machines other than TPUs."""
    return -(-devices // machine.devices_per_node) if compiler_platform(machine) == "tpu" else 1


def slice_shape(machine: Machine, devices: int) -> tuple[int, ...]:
    """Chips along each axis of a TPU slice. BadInput, with the nearest sizes, where no slice has so many."""
    axes = 2 if TPUS[machine.chip.name] in FLAT else 3
    known = SLICES[axes]
    if axes == 3 and devices > max(known):
        cuboid = _least_stretched_cuboid(devices)
        if cuboid:
            return cuboid
        sizes = [n for n in range(64, machine.devices_per_node + 1, 64) if _least_stretched_cuboid(n)]
    else:
        sizes = list(known)
    if devices in known:
        return known[devices]
    near = sorted(sorted(sizes, key=lambda n: abs(n - devices))[:2])
    raise BadInput(
        f"--compile: no slice of {machine.chip.name} has {devices} chips; nearest: {' or '.join(map(str, near))}"
    )


def describe_no_slices(machine: Machine, devices: int) -> str:
    """That so many devices make no slices of a TPU that are sold, or no equal numbers on nodes; "" where they do."""
    node = machine.devices_per_node
    if machine.chip.name not in TPUS:
        if devices <= node or devices % node == 0:
            return ""
        nodes = next(n for n in range(-(-devices // node), devices + 1) if devices % n == 0)
        equal = f"{nodes:,} nodes of {devices // nodes}"
        return f"{devices:,} devices are not whole nodes of {node}; the trainer takes {equal}"
    slices = count_slices(machine, devices)
    if devices % slices:
        return (
            f"{devices:,} chips of {machine.chip.name} are not {slices} equal slices; time is that of as many in slices"
        )
    try:
        slice_shape(machine, devices // slices)
    except BadInput as why:
        return f"{str(why).removeprefix('--compile: ')}; time is that of as many chips in a slice"
    return ""


def _least_stretched_cuboid(chips: int) -> tuple[int, int, int] | None:
    """The cuboid of so many chips nearest to a cube, with sides that are multiples of four; None if there is none."""
    sides = range(4, LONGEST + 1, 4)
    all_ = [(a, b, chips // (a * b)) for a in sides for b in sides if b >= a and chips % (a * b) == 0]
    return min((s for s in all_ if s[2] in sides and s[2] >= s[1]), key=sum, default=None)


def make_absent_devices(machine: Machine, count: int, slices: int) -> tuple[list[Any], str]:
    """`count` absent devices (for cpu: fake ones of this process), and their topology in words."""
    import jax
    from jax.experimental import topologies

    kind = compiler_platform(machine)
    if kind == "cpu":
        return jax.devices()[:count], f"{count} fake CPU device{'s' * (count > 1)}"
    if kind == "gpu":
        across = math.gcd(count, machine.devices_per_node)
        nodes = count // across
        topology = topologies.get_topology_desc(
            "scalelab", "cuda", topology=f"{nodes}x1x{across}", target_config=gpu_target_config(machine)
        )
        return topology.devices, f"{machine.chip.name}, {nodes} x {across}"
    if count % slices:
        raise BadInput(f"--compile: {count} devices are not {slices} equal slices; nearest: {count // slices * slices}")
    shape = slice_shape(machine, count // slices)
    name = f"{TPUS[machine.chip.name]}:{'x'.join(map(str, shape))}"
    options: dict[str, Any] = {"num_slices": slices} if slices > 1 else {}
    if count // slices == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    if name.startswith("v4"):  # else a chip's two cores would be two devices; v5p joins them by default
        options["chip_config_name"] = "megacore"
    topology = topologies.get_topology_desc(name, "tpu", **options)
    return topology.devices, name + f" x {slices} slices" * (slices > 1)


def gpu_target_config(machine: Machine) -> str:
    """The chip as text proto `GpuTargetConfigProto` (openxla/xla, stream_executor/device_description.proto).

    With CUDA's version, without which XLA leaves out the library's fp8 products.
    """
    gpu, chip = GPUS[machine.chip.name], machine.chip
    major, minor = gpu.capability
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: {gpu.threads}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {gpu.shared_bytes - 1024}
  shared_memory_per_core: {gpu.shared_bytes}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  core_count: {gpu.multiprocessors}
  fpus_per_core: {64 if gpu.capability == (8, 0) else 128}
  clock_rate_ghz: {gpu.clock_ghz}
  l2_cache_size: {gpu.l2_bytes}
  memory_bandwidth: {int(chip.hbm_bytes_per_s)}
  device_memory_size: {chip.hbm_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: 12 minor: 9 }}
device_description_str: "{gpu.name}"
"""
