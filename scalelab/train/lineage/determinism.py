"""Does a run give the same bits again? What XLA needs for it, and what can be promised of the bits and why.

Three guarantees, each for the same versions and the same kind of machine:
    bit-exact     started or resumed again, the run gives the same bits
    same mesh     it does on the same mesh; on another one sums are taken in another order (about 1e-6 in fp32)
    statistical   it gives other roundings each time, or has already changed the place that its roundings depend on
"""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
from jax._src.xla_bridge import backends_are_initialized  # no public function asks without starting them
from ml_collections import ConfigDict

from scalelab.errors import WorkFailed
from scalelab.hardware.chips import expects_accelerator
from scalelab.hardware.tactics.switch import tactics_off
from scalelab.record import records

AUTOTUNE_FILE = "autotuned.textproto"
TACTICS_OFF = "tactics_off"  # a fact where there are any
GPU = "gpu"
ORDERED_BACKENDS = {"cpu", "tpu"}  # backends whose sums follow from program and machine alone; they need no flags
MOVED_EVENT = "moved"  # the kind of event that notes another mesh, machine or version under a run


def deterministic_xla_flags(folder: pathlib.Path) -> list[str]:
    """What XLA has to be told, once a process, so that a GPU gives the same bits again: flags for XLA_FLAGS.

    Kernels that add in no fixed order are left out, and which of the others is fastest is measured once a run: the
    choice is kept in `folder` and read from there on a resume. (`--xla_gpu_deterministic_ops` would not measure at
    all.) Processes of one job share the choice, so they may share the file.
    """
    choices = folder.absolute() / AUTOTUNE_FILE
    wanted = ["--xla_gpu_exclude_nondeterministic_ops=true", f'--xla_gpu_dump_autotune_results_to="{choices}"']
    if choices.exists():  # XLA takes a missing file for an error
        wanted.append(f'--xla_gpu_load_autotune_results_from="{choices}"')
    return wanted


def set_deterministic_flags(config: ConfigDict, folder: pathlib.Path) -> None:
    """Set `deterministic_xla_flags` where `train.deterministic` asks for it and there may be a GPU; jax must not have
    been started.

    WorkFailed where it was, on a GPU, under other flags: they are read once a process.
    """
    if not config.train.deterministic:
        return
    given, wanted = os.environ.get("XLA_FLAGS", ""), deterministic_xla_flags(folder)
    if backends_are_initialized():
        if jax.default_backend() == GPU and not all(flag in given for flag in wanted[:2]):
            raise WorkFailed(
                "train.deterministic=true, but jax has already started on the GPU without the flags it needs: start "
                "the "
                f"run in a process of its own (scalelab train), or this one with XLA_FLAGS='{' '.join(wanted)}'"
            )
    elif expects_accelerator():
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["XLA_FLAGS"] = " ".join([given, *wanted]).strip()


def hardware_facts(mesh: str, deterministic: bool) -> dict[str, Any]:
    """What the order of a run's sums depends on besides its program: kept with every checkpoint."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = jax.devices()[0]
    by_platform: dict[str, dict[str, Any]] = {"cpu": {"cores": cores}, GPU: {"deterministic": deterministic}}
    off = {TACTICS_OFF: ",".join(tactics_off())} if tactics_off() else {}
    return {"mesh": mesh, "device": device.device_kind} | off | by_platform.get(device.platform, {})


def describe_hardware_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What differs between two `hardware_facts`s, as text; "" where nothing does, or where the old one is not known."""
    old, new = ({TACTICS_OFF: "none"} | dict(facts) for facts in (old, new))
    return ", ".join(f"{key} {old[key]} -> {value}" for key, value in new.items() if key in old and old[key] != value)


def determinism_note(deterministic: bool, platform: str, devices: int, folder: pathlib.Path) -> dict[str, str]:
    """`{"guarantee", "why"}` for the record of the run in `folder`, `devices` being those of its mesh."""
    moved = [event["text"] for event in records.read_events(folder) if event["kind"] == MOVED_EVENT]
    if moved:
        why = f"the run went on elsewhere: {'; '.join(moved)}; its roundings changed there"
        return _guarantee_entry("statistical", why)
    if platform == GPU and not deterministic:
        why = "GPU kernels are chosen by timing and may add in any order: train.deterministic"
        return _guarantee_entry("statistical", why)
    if platform not in ORDERED_BACKENDS | {GPU}:
        return _guarantee_entry("statistical", f"nothing is known of how {platform} adds")
    order = f"kernels are chosen once and kept in {AUTOTUNE_FILE}; it goes with the run" if platform == GPU else ""
    order = order or "sums are ordered by program and machine" + (", its number of cores too" * (platform == "cpu"))
    if devices > 1:
        return _guarantee_entry("same mesh", f"{order}; another mesh adds in another order")
    return _guarantee_entry("bit-exact", order)


def _guarantee_entry(name: str, why: str) -> dict[str, str]:
    return {"guarantee": name, "why": why}
