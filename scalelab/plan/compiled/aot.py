"""The child process that compiles ahead of time: `compile.py` writes a request to its stdin and reads its file."""

import contextlib
import functools
import json
import pathlib
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from scalelab import user_code
from scalelab.config import LAYERS_NUMBERS, Guard, Layout, ModelShape, Optim, Static, traced_names
from scalelab.errors import BadInput
from scalelab.hardware.chips import Chip, compute_capability
from scalelab.hardware.compiler_options import collective_options
from scalelab.hardware.device_memory import usable_bytes
from scalelab.model.attention.kernels import step_kernel
from scalelab.parallel import mesh as mesh_lib
from scalelab.plan.compiled import absent_devices
from scalelab.plan.machine.machine import Machine
from scalelab.sharding import BATCH_AXES, trace_for_platform
from scalelab.train.step import state as state_lib
from scalelab.train.step.program import hparam_shapes
from scalelab.train.step.step import many_steps

LEAST_EFFORT: Any = {"exec_time_optimization_effort": -1.0}  # libtpu's: a seventh of the time, memory within 2 %
LIBRARY_PRODUCTS: Any = {"xla_gpu_enable_triton_gemm": False}


def answer_request() -> None:
    """Read a request from stdin, compile, write `CompiledMemory`'s fields, or `refused`, to the file it names."""
    request = json.load(sys.stdin)
    user_code.apply_permissions(request["permissions"])
    facts = request["static"]
    options = facts["optim"] | {key: tuple(facts["optim"][key]) for key in ("own", "unset")}
    records = {
        "model": ModelShape(**facts["model"]),
        "optim": Optim(**options),
        "layout": Layout(**facts["layout"]),
        "guard": Guard(**facts["guard"] | {"stages": tuple(facts["guard"]["stages"])}),
        "batch_ramp": tuple(facts["batch_ramp"]),
        "sources": tuple(facts["sources"]),
        "past": (),  # of a run that goes on: the schedules' numbers, and no memory
    }
    static = Static(**facts | records)
    machine = Machine(**request["machine"] | {"chip": Chip(**request["machine"]["chip"])})
    try:
        answer = measure_compiled(
            static, machine, request["slices"], request["steps"], request["program"], request["library_products"]
        )
    except BadInput as refused:
        answer = {"refused": str(refused)}
    pathlib.Path(request["out"]).write_text(json.dumps(answer))


def measure_compiled(
    static: Static, machine: Machine, slices: int, steps: int, program: str = "", library_products: bool = False
) -> dict[str, Any]:
    """`CompiledMemory`'s fields, from the compiler in this process; the program's text goes to the file `program`."""
    platform = absent_devices.compiler_platform(machine)
    devices, where = absent_devices.make_absent_devices(machine, static.layout.devices, slices)
    with trace_for_platform(platform, compute_capability(machine.chip)):
        notes = [f"attention: {step_kernel(static)}"]
        arguments, mesh = _step_arguments(static, devices, steps)
        start = time.perf_counter()
        with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
            lowered = jax.jit(functools.partial(many_steps, static), donate_argnums=0).lower(*arguments)
        oom, memory, least_effort = None, None, platform == "tpu" and not program
        try:
            options: Any = LEAST_EFFORT if least_effort else collective_options(platform, static.layout.devices)
            options = options | (LIBRARY_PRODUCTS if library_products and platform == "gpu" else {})
            compiled = lowered.compile(options or None)
            memory = compiled.memory_analysis()
            if program:
                pathlib.Path(program).write_text(compiled.as_text() or "")
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            oom = str(error)
    seconds = time.perf_counter() - start
    names = ("argument", "temp", "output", "alias")
    sizes = {f"{name}_bytes": getattr(memory, f"{name}_size_in_bytes") if memory else 0 for name in names}
    host = memory.host_argument_size_in_bytes if memory else 0
    peak = memory.peak_memory_in_bytes - host if memory else 0  # XLA's has all memories
    if platform == "cpu":
        peak = sizes["argument_bytes"] + sizes["temp_bytes"] + sizes["output_bytes"] - sizes["alias_bytes"]
        notes.append("a CPU's peak is the sum of all buffers")
    if least_effort:
        notes.append("compiled with the least effort (libtpu's exec_time_optimization_effort=-1)")
    if platform == "gpu":
        notes.append("without autotuning, which needs a device" + ", as does cuDNN's workspace" * ("cudnn" in notes[0]))
        usable = usable_bytes(machine.chip)
        if peak > usable:
            oom = f"{peak / 2**30:.2f} GiB at the peak of {usable / 2**30:.1f} GiB usable (XLA says nothing)"
    sizes["host_bytes"] = host
    return sizes | {"peak_bytes": peak, "seconds": seconds, "oom": oom, "platform": where, "note": "; ".join(notes)}


def _step_arguments(static: Static, devices: list[Any], steps: int) -> tuple[tuple[Any, ...], jax.sharding.Mesh | None]:
    """Shapes and shardings of the arguments of `many_steps`, and the mesh if there is one."""
    size = (steps, static.global_batch, static.model.seq_len + 1)
    keys = [*traced_names(static.optim), "log.every_steps", *[*LAYERS_NUMBERS] * static.layers]
    h = hparam_shapes(keys + ["dataset.separator"] * static.masks_documents)
    n = jax.ShapeDtypeStruct((), jnp.int32)
    if static.layout.devices > 1:
        mesh = mesh_lib.mesh_over_devices(static.layout, devices)
        by_row = NamedSharding(mesh, PartitionSpec(None, BATCH_AXES, None))
        return (
            state_lib.sharded_state_shapes(static, mesh),
            jax.ShapeDtypeStruct(size, jnp.int32, sharding=by_row),
            n,
            h,
        ), mesh
    alone = SingleDeviceSharding(devices[0])
    on_it = functools.partial(jax.tree.map, lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=alone))
    batches = jax.ShapeDtypeStruct(size, jnp.int32)
    state, *others = on_it((state_lib.state_shapes(static), batches, n, h))
    if static.moments_on_host:  # an absent device lists no memories, but takes types of a mesh that is not one
        away = NamedSharding(AbstractMesh((1,), ("host",)), PartitionSpec(), memory_kind=static.moments)
        send = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=away) if x.ndim else x  # noqa: E731
        state = state._replace(opt_state=jax.tree.map(send, state.opt_state))
    return (state, *others), None
