"""Compares the copies that devices of a mesh hold of one array: they must be equal to the last bit.

A bit that flips in the memory of one device changes the training of all, and no loss shows where it came from. At every
save each device sums the bits of what it holds; sums of equal parts must agree. A single flipped bit always changes its
sum (by a power of two, modulo 2^32).
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from scalelab.model.declare import named_leaves
from scalelab.parallel.processes import compile_together

DIFFERS = "differs from that of the other devices"
UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}  # bytes of an element -> the type that shows its bits
Inspection = tuple[list["Copies"], Sequence[jax.Device], jax.Array] | None


class Copies(NamedTuple):
    """An array that several devices hold parts of: its name, and for each device the part that it holds."""

    name: str
    parts: list[str]


def inspect_copies(states: Mapping[str, Any]) -> Inspection:
    """Sum the bits of every copy on its device, dispatched but not waited for; None if no array has copies.

    The sums are a new array `[devices of the mesh, arrays]`, which every process has.
    """
    named = [*named_leaves(dict(states)).items()]
    meshes = [leaf.sharding.mesh for _, leaf in named if isinstance(getattr(leaf, "sharding", None), NamedSharding)]
    copied = [(name, leaf) for name, leaf in named if meshes and _has_copies(leaf, meshes[0])]
    if not copied:
        return None
    leaves = [leaf for _, leaf in copied]
    sums = _make_summing(meshes[0], tuple(leaf.sharding.spec for leaf in leaves))(leaves)
    return [Copies(name, _parts_held(leaf)) for name, leaf in copied], list(meshes[0].devices.flat), sums


def _has_copies(leaf: Any, mesh: Mesh) -> bool:
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.mesh != mesh or leaf.dtype.itemsize not in UNSIGNED:
        return False
    parts = _parts_held(leaf)
    return len(set(parts)) < len(parts)


def _parts_held(leaf: jax.Array) -> list[str]:
    """The part (its slices) that each device of the mesh holds, in the mesh's order."""
    parts = leaf.sharding.devices_indices_map(leaf.shape)
    return [str(parts[device]) for device in leaf.sharding.mesh.devices.flat]  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=8)
def _make_summing(mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> Any:
    """Compile the sums of all arrays on each device, gathered in the mesh's order."""

    def sum_all(leaves: Sequence[jax.Array]) -> jax.Array:
        return jax.lax.all_gather(jnp.stack([_sum_bits(leaf) for leaf in leaves]), mesh.axis_names)

    summing = jax.shard_map(sum_all, mesh=mesh, in_specs=(list(specs),), out_specs=PartitionSpec(), check_vma=False)
    return compile_together(jax.jit(summing), "comparing copies of arrays")


def _sum_bits(x: jax.Array) -> jax.Array:
    bits = x if x.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(x, UNSIGNED[x.dtype.itemsize])
    return jnp.sum(bits.astype(jnp.uint32), dtype=jnp.uint32)


def describe_difference(inspection: Inspection) -> str:
    """Say which copies differ, and on which device of which process; "" if all are equal. Waits for the sums.

    Where more than two devices hold a part, the device that differs from most is named.
    """
    if inspection is None:
        return ""
    copies, devices, sums = inspection[0], inspection[1], np.asarray(jax.device_get(inspection[2]))
    odd = {copy.name: places for i, copy in enumerate(copies) if (places := _odd_devices(copy.parts, sums[:, i]))}
    if not odd:
        return ""
    name, numbers = next(iter(odd.items()))
    where = ", ".join(f"{devices[n]} of process {devices[n].process_index}" for n in numbers)
    more = f" and {len(odd) - 1} other arrays" if len(odd) > 1 else ""
    return f"the copy of {name}{more} on {where} {DIFFERS}"


def _odd_devices(parts: Sequence[str], sums: np.ndarray) -> list[int]:
    usual = {}
    for part in set(parts):
        counts = Counter(int(total) for held, total in zip(parts, sums, strict=True) if held == part)
        usual[part] = counts.most_common(1)[0][0]
    return [n for n, (part, total) in enumerate(zip(parts, sums, strict=True)) if int(total) != usual[part]]
