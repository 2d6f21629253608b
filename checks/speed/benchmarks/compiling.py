"""Compilation of the training step under FSDP x tensor parallelism, over that of the step on one device.

    python -m checks.speed.benchmarks.compiling ROUNDS     (as the benchmark starts it: eight fake devices, prints JSON)

Both are the trainer's own dispatch of k steps, traced, lowered and compiled with nothing cached, taking turns.
"""

import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from scalelab import config as config_lib

LAYOUTS: dict[str, dict[str, Any]] = {"one": {}, "mesh": {"fsdp": 4, "tensor": 2}}
STEPS_A_DISPATCH = 4


def measure_compilation(rounds: int) -> dict[str, Any]:
    """Medians, measured in a new process, since the number of devices is fixed when jax starts."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    command = [sys.executable, "-m", "checks.speed.benchmarks.compiling", str(rounds)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"compiling failed: {done.stderr[-1000:]}")
    return json.loads(done.stdout)


def _compile_s(layout: dict[str, Any]) -> tuple[float, float]:
    """Seconds of tracing and lowering, and seconds of XLA."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from checks.speed.benchmarks.steps import bare, ours
    from scalelab.parallel import mesh as mesh_lib
    from scalelab.sharding import BATCH_AXES
    from scalelab.train.step import state
    from scalelab.train.step.step import many_steps

    jax.clear_caches()
    run = ours.config_for_shape(bare.STEP_256, **{f"parallel.{axis}": size for axis, size in layout.items()})
    fixed, h = config_lib.static(run), config_lib.hparams(run)
    size = (STEPS_A_DISPATCH, run.train.global_batch, run.model.seq_len + 1)
    scalars = config_lib.replace_hparams(jax.tree.map(jnp.float32, h), {"train.seed": jnp.uint32(0)})
    mesh = mesh_lib.make_mesh(fixed.layout) if layout else None
    if mesh:
        like = state.sharded_state_shapes(fixed, mesh)
        batches = jax.ShapeDtypeStruct(
            size, jnp.int32, sharding=NamedSharding(mesh, PartitionSpec(None, BATCH_AXES, None))
        )
    else:
        like, batches = state.state_shapes(fixed), jax.ShapeDtypeStruct(size, jnp.int32)
    step = jax.jit(functools.partial(many_steps, fixed), donate_argnums=0)
    with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
        start = time.perf_counter()
        lowered = step.lower(like, batches, jnp.int32(1), scalars)
        traced = time.perf_counter()
        lowered.compile()
    return traced - start, time.perf_counter() - traced


def _alternate(rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in LAYOUTS}
    for i in range(-1, rounds):
        for name in list(LAYOUTS) if i % 2 else list(LAYOUTS)[::-1]:
            measured = _compile_s(LAYOUTS[name])
            if i >= 0:
                seconds[name].append(measured)
    ratios = [sum(b) / sum(a) for a, b in zip(*seconds.values(), strict=True)]
    row: dict[str, Any] = {"ratio": statistics.median(ratios), "ratio_range": (min(ratios), max(ratios))}
    for name, pairs in seconds.items():
        row |= {
            f"{name}_s": statistics.median(map(sum, pairs)),
            f"{name}_xla_s": statistics.median(b for _, b in pairs),
        }
    return row | {"rounds": rounds, "layout": LAYOUTS["mesh"]}


if __name__ == "__main__":
    print(json.dumps(_alternate(int(sys.argv[1]))))
