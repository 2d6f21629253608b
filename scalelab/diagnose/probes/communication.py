"""Measure the share of a step in which devices only exchange data, by XLA's profiler on the run's own mesh."""

import dataclasses
import pathlib
import tempfile
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.profiler import ProfileData

from scalelab.config import Layout, Static
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.probes.subject import Subject
from scalelab.train.step import program

STEPS = 3  # profiled steps, after as many that compile and warm up
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
               "ragged-all-to-all", "send", "recv")  # fmt: skip
CONTAINERS = ("while", "conditional", "call")  # operations whose event covers the operations inside
Intervals = np.ndarray  # [n, 2] nanoseconds: starts and ends


class Operation(NamedTuple):
    """An HLO operation that ran on a device, by XLA's profile."""

    device: str
    name: str
    start_ns: float
    end_ns: float


def probe_communication(evidence: Evidence, subject: Subject) -> dict[str, Any]:
    """Measure `communication`: time in which a device only exchanges data / time in which it works, mean over devices.

    `communication_here`: devices of this process, if the run had another number; {} for one device.
    """
    mesh = dict(evidence.record.get("mesh", {}))
    devices = mesh.pop("devices", 1)
    if devices < 2:
        return {}
    if jax.device_count() != devices:
        return {"communication_here": jax.device_count()}
    static = dataclasses.replace(subject.static, layout=Layout(**mesh), layers=False)
    with tempfile.TemporaryDirectory() as folder:
        _profile_steps(static, subject, folder)
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        return {"communication": share_of_communication(read_operations(path))}


def _profile_steps(static: Static, subject: Subject, folder: str) -> None:
    """Train from random parameters, since the time hardly depends on values, and profile the last steps."""
    run = program.sequential_program(static, [subject.h])
    states = run.init()
    batches = [np.stack([np.asarray(subject.batch(step))[run.rows] for step in range(STEPS)])]
    states, log = run.advance(states, batches, STEPS)
    jax.block_until_ready((states, log))
    with jax.profiler.trace(folder):
        jax.block_until_ready(run.advance(states, batches, STEPS))


def read_operations(path: pathlib.Path) -> list[Operation]:
    """Read the HLO operations of all devices from a profile (.xplane.pb), without those that contain others.

    Where accelerators have planes of their own, the host's are left out: there it only starts the same operations.
    """
    operations, planes = [], list(ProfileData.from_file(str(path)).planes)
    for plane in [each for each in planes if each.name.startswith("/device:")] or planes:
        for line in plane.lines:
            for event in line.events:
                stats = dict(event.stats)
                name = str(stats.get("hlo_op", ""))
                if name and not name.startswith(CONTAINERS):
                    device = f"{plane.name}/{stats.get('device_ordinal', '')}"
                    operations.append(Operation(device, name, event.start_ns, event.start_ns + event.duration_ns))
    return operations


def share_of_communication(operations: Iterable[Operation]) -> float:
    """Time in collectives alone / time in any operation, mean over devices; collectives behind computation are free."""
    by_device: dict[str, list[Operation]] = {}
    for operation in operations:
        by_device.setdefault(operation.device, []).append(operation)
    shares = []
    for own in by_device.values():
        everything = covered_ns([(o.start_ns, o.end_ns) for o in own])
        computing = covered_ns([(o.start_ns, o.end_ns) for o in own if not o.name.startswith(COLLECTIVES)])
        shares.append(1 - computing / everything if everything else 0.0)
    return float(np.mean(shares)) if shares else 0.0


def covered_ns(intervals: list[tuple[float, float]]) -> float:
    """Length of the union of intervals (start, end)."""
    total, reached = 0.0, -np.inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
