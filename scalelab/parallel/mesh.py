"""The mesh of a layout. All axes are explicit: a value's split is part of its type. `tensor` links near devices."""

import collections
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from scalelab.config import Layout, with_fields
from scalelab.errors import BadInput

MESH_AXES = ("stage", "data", "fsdp", "expert", "context", "tensor")


def resolve_layout(layout: Layout, devices: int) -> Layout:
    """`layout` with its -1 filled in from the number of devices. BadInput where the sizes don't multiply to it.

    A layout of one device is always possible; it leaves the others idle.
    """
    sizes = {axis: getattr(layout, axis) for axis in MESH_AXES}
    free = [axis for axis, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise BadInput(f"parallel.{free[0]}=-1 and parallel.{free[1]}=-1: only one size may be the rest of the devices")
    fixed = 1
    for axis, size in sizes.items():
        if size != -1 and size < 1:
            raise BadInput(f"parallel.{axis}={size} is not a number of devices; 1 or more, or -1 for the rest")
        fixed *= size if size != -1 else 1
    product = " x ".join(f"{axis}={size}" for axis, size in sizes.items() if size != 1)
    if devices % fixed or (not free and fixed not in (1, devices)):
        good = max(k for k in range(1, fixed + 1) if devices % k == 0) if free else devices
        raise BadInput(
            f"parallel: {product} is a mesh of {fixed}, and there are {devices} devices; nearest product: {good}, e.g. "
            f"{_nearest_mesh(sizes, devices)}"
        )
    resolved: dict[str, Any] = {axis: devices // fixed if axis in free else size for axis, size in sizes.items()}
    return with_fields(layout, **resolved)


def _nearest_mesh(sizes: Mapping[str, int], devices: int) -> str:
    """Sizes near those asked for, smallest first, that multiply to the devices; what is left over goes to fsdp or data.

    Nearest is a size that the one asked for divides, or that divides it, if the devices have one beside 1.
    """
    asked, rest, near = {axis: size for axis, size in sizes.items() if size > 1}, devices, dict[str, int]()
    free = next((axis for axis, size in sizes.items() if size == -1), None)
    for axis, size in sorted(asked.items(), key=lambda entry: entry[1]):
        most = min(rest, size) if free else rest
        known = [k for k in range(2, most + 1) if rest % k == 0] or [1]
        related = [k for k in known if k % size == 0 or size % k == 0]
        near[axis] = min(related or known, key=lambda k: abs(math.log(k / size)))
        rest //= near[axis]
    over = free or ("data" if "fsdp" in near or rest & (rest - 1) else "fsdp")
    near[over] = near.get(over, 1) * rest
    return " x ".join(f"{axis}={near[axis]}" for axis in MESH_AXES if near.get(axis, 1) > 1)


def describe_mesh(mesh: Mapping[str, Any]) -> str:
    """A record's `mesh` in words: "fsdp=4 x tensor=2, sequence, zero=3"; "stage=2 x data=4, 1f1b"; "one device"."""
    sizes = {axis: mesh.get(axis, 1) for axis in (*MESH_AXES, "trial")}
    product = " x ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1) or "one device"
    schedule = f", {mesh['schedule']}" if sizes["stage"] > 1 else ""
    zero = f", zero={mesh['zero']}" if sizes["fsdp"] > 1 else ""
    return product + schedule + ", sequence" * bool(mesh.get("sequence")) + zero


@functools.cache
def make_mesh(layout: Layout) -> Mesh:
    """The mesh of a resolved layout over all devices."""
    return mesh_over_devices(layout, jax.devices())


def mesh_over_devices(layout: Layout, devices: Sequence[Any]) -> Mesh:
    """The mesh of a resolved layout over these devices, which may be absent ones (`plan/compiled/absent_devices.py`).

    With several slices (of TPUs, hosts of GPUs, or domains of NVLink) the outermost axes use the network between them,
    `tensor` last. BadInput where slices have unequal numbers of these devices.
    """
    sizes = [getattr(layout, axis) for axis in MESH_AXES]
    kinds = (AxisType.Explicit,) * len(MESH_AXES)
    of_slice = collections.Counter(getattr(device, "slice_index", 0) for device in devices)
    if len(of_slice) == 1:
        try:
            return jax.make_mesh(tuple(sizes), MESH_AXES, axis_types=kinds, devices=devices)
        except NotImplementedError:  # a torus whose sides aren't products of these sizes: an axis gets part of a side
            laid_out = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
            return Mesh(laid_out, MESH_AXES, axis_types=kinds)
    if len(set(of_slice.values())) > 1:
        numbers = " and ".join(map(str, sorted(set(of_slice.values()))))
        raise BadInput(
            f"parallel: {len(devices)} devices lie in {len(of_slice)} slices (hosts, of GPUs) with {numbers} each; a "
            f"mesh needs as many in each; nearest: {min(of_slice.values())} in each"
        )
    outer = _sizes_between_slices(sizes, len(of_slice))
    inner = [size // part for size, part in zip(sizes, outer, strict=True)]
    laid_out = mesh_utils.create_hybrid_device_mesh(inner, outer, devices, allow_split_physical_axes=True)
    return Mesh(laid_out, MESH_AXES, axis_types=kinds)


def _sizes_between_slices(sizes: Sequence[int], slices: int) -> list[int]:
    """The part of each axis that goes over the network between slices, the outermost first."""
    left, outer = slices, list[int]()
    for size in sizes:
        outer.append(math.gcd(left, size))
        left //= outer[-1]
    return outer
