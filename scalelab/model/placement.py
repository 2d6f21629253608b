"""Where values lie on a mesh, by the logical names of their axes. Without a mesh nothing here does anything.

Mesh axes: `data` and `fsdp` split the batch, `fsdp` also splits parameters at rest, `tensor` splits heads, feed-forward units
and the vocabulary (Shoeybi et al. 2019) and, between the blocks, the sequence (Korthikanti et al. 2022, section 4.2.2).
The trainer sets the mesh (`parallel/mesh.py`); the model asks for it here, where it is traced.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.sharding import AbstractMesh, PartitionSpec, reshard

BATCH = ("data", "fsdp")
TENSOR = "tensor"
SPLIT_BY_TENSOR = ("heads", "kv_heads", "mlp", "vocab", "split_seq")


def on_mesh() -> bool:
    """Whether this is traced for a mesh."""
    return not jax.sharding.get_abstract_mesh().empty


def off_mesh() -> AbstractContextManager:
    """Within it, what is traced is traced for no mesh: shapes and initial values don't depend on one."""
    return jax.sharding.use_abstract_mesh(AbstractMesh((), ()))


def spec(*names: str | None) -> PartitionSpec:
    """How an activation with these logical axes is split: `batch` over data and fsdp, what tensor splits over tensor."""
    return PartitionSpec(*[BATCH if n == "batch" else TENSOR if n in SPLIT_BY_TENSOR else None for n in names])


def place(x: jax.Array, *names: str | None) -> jax.Array:
    """`x` split as its logical axes say: an all-gather, a slice, or nothing."""
    return reshard(x, spec(*names)) if on_mesh() else x


def use(w: jax.Array, *names: str) -> jax.Array:
    """A parameter as the forward pass needs it: gathered over fsdp, still split over tensor. Its gradient is scattered back."""
    return place(w, *names)


def residual(sequence_parallel: bool) -> tuple[str | None, ...]:
    """Logical axes of the residual stream [B, S, D]."""
    return ("batch", "split_seq" if sequence_parallel else None, None)


def local(function: Callable, ins: tuple[PartitionSpec, ...], out: Any) -> Callable:
    """`function` on each device's own part of its arguments; the function itself where there is no mesh."""
    return jax.shard_map(function, in_specs=ins, out_specs=out) if on_mesh() else function
