"""An accelerator for each worker: the environment that shows a process one GPU or TPU chip of this machine."""

import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from scalelab.config.static import Layout
from scalelab.hardware.chips import expects_accelerator

GPU_VARIABLE, TPU_VARIABLE = "CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS"
ONE_TPU_CHIP = {"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1"}  # Cloud TPU documentation
AXES = ("data", "fsdp", "expert", "tensor", "context", "stage")


def list_accelerators(devices: pathlib.Path = pathlib.Path("/dev")) -> list[dict[str, str]]:
    """The environment that shows one accelerator, for each that this process may use; [] on a CPU.

    jax is not started: it would take the devices' memory.
    """
    if not expects_accelerator():
        return []
    if gpus := _visible(GPU_VARIABLE, devices, r"nvidia(\d+)"):
        return [{GPU_VARIABLE: gpu} for gpu in gpus]
    chips = _visible(TPU_VARIABLE, devices, r"accel(\d+)") or _visible(TPU_VARIABLE, devices / "vfio", r"(\d+)")
    return [{TPU_VARIABLE: chip} | ONE_TPU_CHIP for chip in chips]


def _visible(variable: str, folder: pathlib.Path, pattern: str) -> list[str]:
    """The devices that the variable names, else those whose files are there."""
    if variable in os.environ:
        return [name for name in os.environ[variable].split(",") if name]
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    return sorted((match[1] for name in names if (match := re.fullmatch(pattern, name))), key=int)


def devices_a_run(config: Any) -> int:
    """How many devices a run's mesh asks for; -1: all there are."""
    layout = {axis: config.get("parallel", {}).get(axis, getattr(Layout, axis)) for axis in AXES}
    product = 1
    for size in layout.values():
        product *= size
    return -1 if -1 in layout.values() else product


def split_accelerators(workers: int, configs: Sequence[Any]) -> list[dict[str, str]]:
    """The environment of each worker: its own accelerator; all of them for one whose runs have a mesh."""
    accelerators = list_accelerators()
    if len(accelerators) < 2 or any(devices_a_run(config) != 1 for config in configs):
        return [{}] * workers
    return [accelerators[i % len(accelerators)] for i in range(workers)]
