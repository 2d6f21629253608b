"""Where values lie on a mesh, by the logical names of their axes. Without a mesh nothing here does anything.

Mesh axes: `data` and `fsdp` split the batch, `fsdp` also splits parameters at rest, `context` splits the sequence, `tensor`
splits heads, feed-forward units and the vocabulary (Shoeybi et al. 2019) and, between the blocks, the sequence once more
(Korthikanti et al. 2022, section 4.2.2). `stage` splits the layers, and is none of the model's business: each stage traces
its own blocks (`parallel/pipeline.py`). The trainer sets the mesh (`parallel/mesh.py`); the model asks for it here.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, PartitionSpec, reshard

BATCH_AXES = ("data", "fsdp")
CONTEXT_AXIS = "context"
TENSOR_AXIS = "tensor"
STAGE_AXIS = "stage"
SPLIT_BY_TENSOR = ("heads", "kv_heads", "mlp", "vocab")
MESH_AXES_OF: dict[str | None, Any] = {
    "batch": BATCH_AXES,
    "context": CONTEXT_AXIS,
    "split_seq": (CONTEXT_AXIS, TENSOR_AXIS),
}
MESH_AXES_OF |= dict.fromkeys(SPLIT_BY_TENSOR, TENSOR_AXIS)

_PLATFORM: contextvars.ContextVar[str] = contextvars.ContextVar("platform", default="")


def target_platform() -> str:
    """What programs are traced for, as jax names backends: the one that is here, or what `trace_for_platform` says."""
    return _PLATFORM.get() or jax.default_backend()


@contextlib.contextmanager
def trace_for_platform(platform: str) -> Iterator[None]:
    """Within it programs are traced for a platform that isn't here: `cpu`, `gpu` or `tpu`. For a process of its own, since
    jax keeps traces by function."""
    token = _PLATFORM.set(platform)
    try:
        yield
    finally:
        _PLATFORM.reset(token)


def has_explicit_mesh() -> bool:
    """Whether this is traced for a mesh whose splits are the program's to name: not so under `auto_axes`."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and any(kind != AxisType.Auto for kind in mesh.axis_types)


def without_mesh() -> AbstractContextManager:
    """Within it, what is traced is traced for no mesh: shapes and initial values don't depend on one."""
    return jax.sharding.use_abstract_mesh(AbstractMesh((), ()))


def activation_spec(*names: str | None) -> PartitionSpec:
    """How an activation with these logical axes is split; `context` is its sequence, `split_seq` the same between blocks."""
    return PartitionSpec(*[MESH_AXES_OF.get(n) for n in names])


def reshard_to(x: jax.Array, *names: str | None) -> jax.Array:
    """`x` split as its logical axes say: an all-gather, a slice, or nothing."""
    return reshard(x, activation_spec(*names)) if has_explicit_mesh() else x


def gather_weight(w: jax.Array, *names: str) -> jax.Array:
    """A parameter as the forward pass needs it: gathered over fsdp, still split over tensor. Its gradient is scattered back."""
    return reshard_to(w, *names)


def residual_axes(sequence_parallel: bool) -> tuple[str | None, ...]:
    """Logical axes of the residual stream [B, S, D]."""
    return ("batch", "split_seq" if sequence_parallel else "context", None)


def is_in_stage() -> bool:
    """Whether this is traced for a stage of a pipeline."""
    return STAGE_AXIS in jax.sharding.get_abstract_mesh().manual_axes


def per_device(function: Callable, ins: tuple[PartitionSpec, ...], out: Any, checked: bool = True) -> Callable:
    """`function` on each device's own part of its arguments; the function itself where there is no mesh.

    Not `checked`: jax isn't to follow which values differ between devices; for kernels that don't say so of their results.
    """
    if not has_explicit_mesh():
        return function
    mesh = jax.sharding.get_abstract_mesh()
    free = set(mesh.axis_names) - set(mesh.manual_axes)
    whole = functools.partial(jax.shard_map, axis_names=free, check_vma=checked)
    mapped = whole(function, in_specs=ins, out_specs=out)
    return _recompute_in_backward(function, mapped, whole, ins, out) if mesh.manual_axes else mapped


def _recompute_in_backward(
    function: Callable, mapped: Callable, whole: Callable, ins: tuple[PartitionSpec, ...], out: Any
) -> Callable:
    """`mapped` with a backward that keeps its arguments only and maps the function's own backward.

    Within a pipeline's stage, since jax 0.10 cannot lower what a shard_map inside another one would keep.
    """

    def backward(args: tuple, cotangent: Any) -> tuple:
        real = [i for i, arg in enumerate(args) if jnp.issubdtype(arg.dtype, jnp.inexact)]

        def pull(args: tuple, cotangent: Any) -> tuple:
            at = lambda *some: function(*[dict(zip(real, some, strict=True)).get(i, a) for i, a in enumerate(args)])  # noqa: E731
            return jax.vjp(at, *[args[i] for i in real])[1](cotangent)

        found = whole(pull, in_specs=(ins, out), out_specs=tuple(ins[i] for i in real))(args, cotangent)
        by_index = dict(zip(real, found, strict=True))
        return tuple(by_index.get(i) for i in range(len(args)))

    called = jax.custom_vjp(mapped)
    called.defvjp(lambda *args: (mapped(*args), args), backward)
    return called


def mesh_axis_size(axis: str) -> int:
    """How many devices the mesh has along `axis`; 1 where there is no mesh."""
    return dict(jax.sharding.get_abstract_mesh().shape).get(axis, 1)


def vary_like(x: jax.Array, *others: jax.Array) -> jax.Array:
    """Within a shard_map: `x` as a value that may differ along every axis that one of `others` differs along."""
    axes = frozenset().union(*[jax.typeof(other).manual_axis_type.varying for other in others])
    return jax.lax.pcast(x, tuple(axes - jax.typeof(x).manual_axis_type.varying), to="varying")
