"""The programs of `make gpu`, lowered and compiled for an absent chip by the planner's own path (`plan --compile`)."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from scalelab import config as config_lib
from scalelab.errors import WorkFailed
from scalelab.experiments.gpu import attention, packing, utilisation
from scalelab.experiments.gpu.settings import FULL_SETTINGS, TINY_SETTINGS, Settings, build_config
from scalelab.plan.machine import absent_devices
from scalelab.plan.machine.compile import compile_step
from scalelab.plan.machine.machine import Machine, load_machine
from scalelab.sharding import trace_for_platform

CHILD_CODE = "import sys; from scalelab.experiments.gpu import compiled; compiled.child(sys.argv[1], sys.argv[2])"


def compile_for_chip(settings: Settings, chip: str) -> list[dict[str, Any]]:
    """One row per program: each model's step at its planned rows, packed trials, attention.

    BadInput if the compiler is not installed.
    """
    on = load_machine(chip)
    absent_devices.check_installed(on)
    steps = [_step(settings, name, on) for name in settings.models]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    argv = [sys.executable, "-c", CHILD_CODE, chip, "tiny" if settings == TINY_SETTINGS else "full"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    if done.returncode:
        raise WorkFailed(f"the compiler for {on.chip.name} failed: {(done.stderr.strip().splitlines() or [''])[-1]}")
    return [*steps, *json.loads(done.stdout.splitlines()[-1])]


def _step(settings: Settings, name: str, on: Machine) -> dict[str, Any]:
    """A model's train step as part `mfu` runs it."""
    way = utilisation.choose_plan(settings.models[name], on, settings.rows)
    tree = build_config(settings.models[name], model__remat=way["remat"], train__global_batch=way["rows"])
    compiled = compile_step(config_lib.static(tree), on)
    return {
        "program": f"{name}, {way['rows']} rows, remat {way['remat']}", "platform": compiled.platform,
        "seconds": compiled.seconds,
        "planned_bytes": way["memory_bytes"], "peak_bytes": compiled.peak_bytes, "note": compiled.oom or compiled.note,
    }  # fmt: skip


def child(chip: str, size: str) -> None:
    """Compile the programs that have no config in this process; print the rows as JSON."""
    settings, machine = TINY_SETTINGS if size == "tiny" else FULL_SETTINGS, load_machine(chip)
    (device, *_), where = absent_devices.make_absent_devices(machine, 1, 1)
    alone = jax.sharding.SingleDeviceSharding(device)
    rows = []
    for name, function, arguments in list_programs(settings):
        placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=alone), arguments)
        start = time.perf_counter()
        with trace_for_platform(absent_devices.compiler_platform(machine)):
            memory = jax.jit(function).lower(*placed).compile().memory_analysis()
        rows.append({
            "program": name, "platform": where, "seconds": time.perf_counter() - start, "planned_bytes": 0,
            "peak_bytes": memory.peak_memory_in_bytes, "note": "",
        })  # fmt: skip
    print(json.dumps(rows))


def list_programs(settings: Settings) -> Iterator[tuple[str, Callable, tuple[Any, ...]]]:
    """(name, function, shapes of its arguments) of the packed trials and of attention.

    cuDNN's attention is a library call and is not compiled here.
    """
    static, h, state = packing.stacked_shapes(settings)
    batches = (settings.trials, settings.steps, settings.trial_rows, settings.trial["seq_len"] + 1)
    arguments = state, jax.ShapeDtypeStruct(batches, jnp.int32), jax.ShapeDtypeStruct((), jnp.int32), h
    yield f"{settings.trials} trials under vmap", packing.vmap_steps(static), arguments
    inputs = (jax.ShapeDtypeStruct(settings.attention, jnp.bfloat16),) * 3
    for kind in ("blockwise", "xla"):
        for masked in (False, True):
            yield f"{kind} attention{', documents masked' * masked}", attention.make_gradients(kind, masked), inputs


def lower_programs(settings: Settings, platform: str = "cuda") -> dict[str, str]:
    """Each program's StableHLO for `platform`, without its compiler: tests check shapes and formats anywhere."""
    with trace_for_platform({"cuda": "gpu"}.get(platform, platform)), _no_cache():
        return {
            name: jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
            for name, function, arguments in list_programs(settings)
        }


@contextlib.contextmanager
def _no_cache() -> Iterator[None]:
    """Clear programs that were traced for another platform."""
    jax.clear_caches()
    try:
        yield
    finally:
        jax.clear_caches()
