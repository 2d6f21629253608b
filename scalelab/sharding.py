"""Sharding of values on a mesh, by the logical names of their axes. Without a mesh all functions are no-ops.

Mesh axes: `data`, `fsdp` and `expert` split the batch, `fsdp` also parameters at rest, `expert` those of experts,
between which tokens travel (`model/experts/exchange.py`), `context` splits the sequence, `tensor` splits heads,
feed-forward units and the vocabulary (Shoeybi et al. 2019) and, between the blocks, the sequence once more (Korthikanti
et al. 2022, section 4.2.2). `stage` splits the layers; the model doesn't see it, as each stage traces its own blocks
(`parallel/stage.py`). The trainer sets the mesh (`parallel/mesh.py`); the model asks for it
here.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, PartitionSpec, reshard

EXPERT_AXIS = "expert"
BATCH_AXES = ("data", "fsdp", EXPERT_AXIS)
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

AxisNames = tuple[str | None, ...]  # logical axes of an array
Capability = tuple[int, int]  # CUDA's compute capability: major, minor
NO_CUDA = (0, 0)  # of a GPU of another maker than NVIDIA
ASSUMED_CAPABILITY = (9, 0)  # of a GPU that is neither here nor named: Hopper's
_PLATFORM = jax.make_user_context(("", None))  # (backend, capability); part of the keys of jax's caches


def target_platform() -> str:
    """The backend that programs are traced for: jax's default, or the one set by `trace_for_platform`."""
    platform: str = _PLATFORM.value[0]
    return platform or jax.default_backend()


def target_capability() -> Capability:
    """The compute capability of the GPU that programs are traced for: the one set, or here, or else assumed."""
    platform, capability = _PLATFORM.value
    if capability is None and not platform and jax.default_backend() == "gpu":
        text = getattr(jax.local_devices()[0], "compute_capability", None)
        words = [] if text is None else str(text).split(".")
        known = (int(words[0]), int(words[1])) if len(words) == 2 else NO_CUDA  # AMD's say "gfx942"
        capability = known if words else None
    return capability or ASSUMED_CAPABILITY


@contextlib.contextmanager
def trace_for_platform(platform: str, capability: Capability | None = None) -> Iterator[None]:
    """A context that traces programs for a platform that isn't present: `cpu`, `gpu` (of a `capability`) or `tpu`.

    Traces of other platforms are kept apart from these, so a process may trace for several.
    """
    with _PLATFORM((platform, capability)):
        yield


def has_explicit_mesh() -> bool:
    """Whether this is traced for a mesh with explicit axes, whose shardings the program names (no `auto_axes`)."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and any(kind != AxisType.Auto for kind in mesh.axis_types)


def without_mesh() -> AbstractContextManager:
    """A context that traces without a mesh: shapes and initial values don't depend on one."""
    return jax.sharding.use_abstract_mesh(AbstractMesh((), ()))


def activation_spec(*names: str | None) -> PartitionSpec:
    """The sharding of an activation with these logical axes; `split_seq` is the sequence between blocks.

    Within a shard_map, of a device's part: without the axes over which it is mapped.
    """
    return without_axes(PartitionSpec(*[MESH_AXES_OF.get(n) for n in names]), mapped_axes())


def axes_of(*names: str | None) -> tuple[str, ...]:
    """The mesh axes that split any of these logical axes."""
    return mesh_axes(activation_spec(*names))


def within_block(names: AxisNames) -> AxisNames:
    """The logical axes within a block, of an array that has these between blocks: the sequence is whole on `tensor`."""
    return tuple("context" if name == "split_seq" else name for name in names)


def mapped_axes() -> frozenset[str]:
    """The mesh axes of the shard_maps around: a pipeline's stages, and the batch's that it maps too."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def token_axes() -> tuple[str, ...]:
    """The mesh axes that split tokens, without those over which a pipeline is mapped: along these it adds up itself."""
    return tuple(axis for axis in (*BATCH_AXES, CONTEXT_AXIS) if axis not in mapped_axes())


def without_axes(spec: PartitionSpec, axes: Iterable[str]) -> PartitionSpec:
    """`spec` of the parts that are left once an array is split along `axes`."""
    if not (axes := set(axes)):
        return spec
    entries = [(entry,) if isinstance(entry, str) else entry or () for entry in spec]
    return PartitionSpec(*[tuple(axis for axis in entry if axis not in axes) or None for entry in entries])


def reshard_to(x: jax.Array, *names: str | None) -> jax.Array:
    """Reshard `x` by its logical axes: an all-gather, a slice, or nothing."""
    return reshard(x, activation_spec(*names)) if has_explicit_mesh() else x


def gather_weight(w: jax.Array, *names: str) -> jax.Array:
    """Gather a parameter over fsdp for the forward pass, still split over tensor; its gradient is scattered back."""
    return reshard_to(w, *names)


class GatheredWeight(NamedTuple):
    """A weight that was gathered over fsdp once, for all products of a step.

    `values`: in the format of these products. `master`: what is differentiated in its place, an fp32 array whose values
    are not read: the gradient takes its sharding.
    """

    values: jax.Array
    master: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return self.master.shape


Weight = jax.Array | GatheredWeight


def weight_values(w: Weight) -> jax.Array:
    """What is multiplied: of a weight that is `reduced` its values alone, as products in fp8 know no such mark."""
    if isinstance(w, GatheredWeight):
        return w.values
    spec = spec_of(w)
    return reshard(w, PartitionSpec(*spec.partitions)) if spec.reduced else w


def weight_master(w: Weight) -> jax.Array:
    """What gets the gradient."""
    return w.master if isinstance(w, GatheredWeight) else w


def gradient_like(w: Weight, gradient: jax.Array) -> Any:
    """The gradient of `w` as a backward returns it."""
    return GatheredWeight(None, gradient) if isinstance(w, GatheredWeight) else gradient  # type: ignore[arg-type]


def mesh_axes(partitions: Iterable[Any]) -> tuple[str, ...]:
    """The mesh axes in entries of a PartitionSpec."""
    entries = [entry for entry in partitions if entry]
    return tuple(axis for entry in entries for axis in (entry if isinstance(entry, tuple) else (entry,)))


def spec_of(x: jax.Array) -> PartitionSpec:
    """The sharding of `x`; without a mesh that of a whole array."""
    return jax.typeof(x).sharding.spec if has_explicit_mesh() else PartitionSpec()


def gradient_spec(x: jax.Array) -> PartitionSpec:
    """The sharding of the gradient of `x`: as `x`, not yet added up along axes along which `x` is `reduced`."""
    spec = spec_of(x)
    return PartitionSpec(*spec.partitions, unreduced=spec.reduced)


def times_scalar(x: jax.Array, scalar: jax.Array) -> jax.Array:
    """`x` times a number that all devices know; `x` may be sums that are not yet added up (`unreduced`)."""
    parts = spec_of(x).unreduced
    return x * (reshard(scalar, PartitionSpec(reduced=parts)) if parts else scalar)


def residual_axes(sequence_parallel: bool) -> tuple[str | None, ...]:
    """Logical axes of the residual stream [B, S, D]."""
    return ("batch", "split_seq" if sequence_parallel else "context", None)


def is_in_stage() -> bool:
    """Whether this is traced for a pipeline stage."""
    return STAGE_AXIS in jax.sharding.get_abstract_mesh().manual_axes


def per_device(function: Callable, ins: tuple[PartitionSpec, ...], out: Any, checked: bool = True) -> Callable:
    """Map `function` over each device's part of its arguments; without a mesh, returns the function itself.

    `checked` False: jax doesn't track which values differ between devices; for kernels that don't declare it.
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
    """`mapped` with a backward that saves only its arguments and maps the function's own backward.

    For pipeline stages: jax 0.10 cannot lower the residuals of a shard_map inside another one.
    """

    def backward(args: tuple, cotangent: Any) -> tuple:
        real = [i for i, arg in enumerate(args) if jnp.issubdtype(arg.dtype, jnp.inexact)]

        def pull(args: tuple, cotangent: Any) -> tuple:
            def of_real(*values: Any) -> Any:
                given = dict(zip(real, values, strict=True))
                return function(*[given.get(i, arg) for i, arg in enumerate(args)])

            return jax.vjp(of_real, *[args[i] for i in real])[1](cotangent)

        gradients = whole(pull, in_specs=(ins, out), out_specs=tuple(ins[i] for i in real))(args, cotangent)
        by_index = dict(zip(real, gradients, strict=True))
        return tuple(by_index.get(i) for i in range(len(args)))

    called = jax.custom_vjp(mapped)
    called.defvjp(lambda *args: (mapped(*args), args), backward)
    return called


def mesh_axis_size(axis: str) -> int:
    """The number of devices along `axis` of the mesh; 1 without a mesh, and where the compiler shards (`auto_axes`)."""
    return dict(jax.sharding.get_abstract_mesh().shape).get(axis, 1) if has_explicit_mesh() else 1


def sum_along(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Sum of all devices' `x` along `axes` of the mesh. In a shard_map; without a mesh `x`."""
    return jax.lax.psum(x, axes) if has_explicit_mesh() and axes else x


def varying_axes(x: jax.Array) -> frozenset[str]:
    """The mesh axes along which `x`, inside a shard_map, may differ between devices."""
    varying: frozenset[str] = jax.typeof(x).manual_axis_type.varying
    return varying


def vary_like(x: jax.Array, *others: jax.Array) -> jax.Array:
    """Cast `x`, inside a shard_map, to a value that may vary along every axis along which one of `others` varies."""
    axes = frozenset[str]().union(*map(varying_axes, others))
    return jax.lax.pcast(x, tuple(axes - varying_axes(x)), to="varying")


def as_partial_sums(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    """Mark `x`, inside a shard_map, as this device's part of sums along the axes along which `spec` is `unreduced`."""
    axes = tuple(sorted(spec.unreduced))
    return jax.lax.pcast(x, axes, to="unreduced") if axes else x
