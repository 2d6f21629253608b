"""The programs of `make gpu`, lowered and compiled for an absent chip by the planner's own path (`plan --compile`)."""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from scalelab import config as config_lib
from scalelab.errors import WorkFailed
from scalelab.experiments import isoflop, ladder_runs
from scalelab.experiments.gpu import attention, packing, utilisation
from scalelab.experiments.gpu.resume import train_command
from scalelab.experiments.gpu.settings import FULL_SETTINGS, TINY_SETTINGS, Settings, build_config
from scalelab.plan.machine import absent_devices
from scalelab.plan.machine.compile import compile_step
from scalelab.plan.machine.machine import Machine, load_machine
from scalelab.plan.memory.memory import step_memory
from scalelab.sharding import trace_for_platform
from scalelab.train.step import state as state_lib
from scalelab.train.step.step import many_steps

CHILD_CODE = "import sys; from scalelab.experiments.gpu import compiled; compiled.child(sys.argv[1], sys.argv[2])"


def compile_for_chip(settings: Settings, chip: str) -> list[dict[str, Any]]:
    """One row per program: the steps that the parts train at their planned rows, packed trials, attention, chunks.

    BadInput if the compiler is not installed.
    """
    on = load_machine(chip)
    absent_devices.check_installed(on)
    steps = [_planned_step(settings, name, on, *way) for name, way in list_ways(settings)]
    steps += [_step(name, tree, on) for name, tree in list_runs(settings)]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    argv = [sys.executable, "-c", CHILD_CODE, chip, "tiny" if settings == TINY_SETTINGS else "full"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    if done.returncode:
        raise WorkFailed(f"the compiler for {on.chip.name} failed: {(done.stderr.strip().splitlines() or [''])[-1]}")
    return [*steps, *json.loads(done.stdout.splitlines()[-1])]


def list_ways(settings: Settings) -> list[tuple[str, tuple[str, tuple[str, ...]]]]:
    """(model, (precision, remat policies to choose from)) of parts `mfu`, `fp8` and `sweeps`."""
    everything = utilisation.REMAT_POLICIES
    ways = [(name, (how, everything)) for how in ("bf16", utilisation.FP8) for name in settings.models]
    return ways + [(settings.varied, ("bf16", (remat,))) for remat in everything]


def list_runs(settings: Settings) -> list[tuple[str, Any]]:
    """(name, config) of parts `resume` and `plan`, and of the largest and the smallest run of part `isoflop`."""
    runs = [("resume", load_config(train_command(settings, pathlib.Path("run"))))]
    runs += [("plan", load_config(settings.measured))]
    study, _ = isoflop.parse_arguments(list(settings.rung))
    rungs = sorted(ladder_runs.fit_runs(study).items(), key=lambda run: run[1].model.d_model)
    return [*runs, rungs[0], rungs[-1]]


def load_config(argv: Sequence[str]) -> Any:
    """The resolved config of a command line."""
    overrides, _ = config_lib.split_overrides(list(argv))
    (path,) = (word.partition("=")[2] for word in argv if word.startswith("--config="))
    return config_lib.load(path, overrides)


def _planned_step(
    settings: Settings, name: str, on: Machine, precision: str, policies: tuple[str, ...]
) -> dict[str, Any]:
    way = utilisation.choose_plan(settings.models[name], on, settings.rows, precision, policies)
    tree = utilisation.planned_config(settings.models[name], way)
    return _step(f"{name}, {precision}, {way['rows']} rows, remat {way['remat']}", tree, on)


def _step(name: str, tree: Any, on: Machine) -> dict[str, Any]:
    """A config's train step, planned and compiled."""
    static = config_lib.static(tree)
    compiled = compile_step(static, on)
    return {
        "program": name, "platform": compiled.platform, "seconds": compiled.seconds,
        "planned_bytes": step_memory(static, on).total, "peak_bytes": compiled.peak_bytes,
        "note": compiled.oom or compiled.note,
    }  # fmt: skip


def child(chip: str, size: str) -> None:
    """Compile the programs that have no config in this process; print the rows as JSON."""
    settings, machine = TINY_SETTINGS if size == "tiny" else FULL_SETTINGS, load_machine(chip)
    (device, *_), where = absent_devices.make_absent_devices(machine, 1, 1)
    alone = jax.sharding.SingleDeviceSharding(device)
    rows = []
    for name, function, arguments in list_programs(settings):
        jax.clear_caches()  # of the same functions with other chunks
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
    """(name, function, shapes of its arguments) of the packed trials, of attention, and of steps with other chunks.

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
    for tokens in settings.chunks:
        yield f"{settings.varied}, chunks of {tokens:,} tokens", *_chunked_step(settings, tokens)


def _chunked_step(settings: Settings, tokens: int) -> tuple[Callable, tuple[Any, ...]]:
    """A step of the varied model at two rows, and the shapes of its arguments."""
    tree = build_config(settings.models[settings.varied], model__remat="full", train__global_batch=2)
    static = config_lib.static(tree)
    static = dataclasses.replace(static, model=dataclasses.replace(static.model, attention="blockwise"))
    h = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in config_lib.hparams(tree)}
    h |= {"seed": jax.ShapeDtypeStruct((), jnp.uint32), "separator": jax.ShapeDtypeStruct((), jnp.int32)}
    batch = jax.ShapeDtypeStruct((1, 2, static.model.seq_len + 1), jnp.int32)

    def step(*arguments: Any) -> Any:
        with utilisation.chunks_of(tokens):
            return many_steps(static, *arguments)

    return step, (state_lib.state_shapes(static), batch, jax.ShapeDtypeStruct((), jnp.int32), h)


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
