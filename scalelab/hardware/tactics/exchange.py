"""Only a compiler's estimate speaks for this: TPUs add up gradients by an exchange of parts, not by a reduce-scatter.

libtpu 0.0.42 makes a reduce-scatter over three axes of devices (v5p, 2x2x2 and larger) an all-reduce of twice the
bytes, and waits for it on all TPUs. An all-to-all of its parts goes on beside computation: an 8B on 8 v5p sends 103 GB
a step, not 156 (compiled 2026-11-25 and run on none: checks/results/programs.md, CHANGELOG.md).
Off: SCALELAB_TACTICS_OFF=exchange.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec, reshard

from scalelab.hardware.tactics.switch import is_on
from scalelab.sharding import mapped_axes, mesh_axes, mesh_axis_size, per_device, spec_of, sum_along, target_platform

# Parts of more devices pass through too many others: on 2x2x4 a link carries a whole gradient's bytes, in an all-reduce
# by three rings 0.63 of them; on 2x2x2 it is 0.50 and 0.58.
MOST_EXCHANGING = 8


def scatters_by_exchange(gradient: PartitionSpec) -> bool:
    """Whether a weight's gradient, of this sharding, is added up by `exchanged_gradient`."""
    split = "fsdp" in gradient.partitions and not gradient.unreduced and not mapped_axes()
    return split and _sums_by_exchange(mesh_axis_size("fsdp"))


def _sums_by_exchange(devices: int) -> bool:
    return target_platform() == "tpu" and 1 < devices <= MOST_EXCHANGING and is_on("exchange")


def scatter_sum(x: jax.Array, axes: tuple[str, ...], dimension: int) -> jax.Array:
    """Sum of all devices' `x` along `axes` of the mesh; each device gets its part of `dimension`. In a shard_map."""
    devices = math.prod(mesh_axis_size(axis) for axis in axes)
    if not _sums_by_exchange(devices):
        return jax.lax.psum_scatter(x, axes, scatter_dimension=dimension, tiled=True)
    parts = x.reshape(*x.shape[:dimension], devices, -1, *x.shape[dimension + 1 :])
    received = jax.lax.all_to_all(parts, axes, dimension, dimension)
    # Not `sum`, which libtpu doesn't fuse with what follows: it estimates 3.7 times the cycles.
    return functools.reduce(
        jnp.add, [jax.lax.index_in_dim(received, i, dimension, keepdims=False) for i in range(devices)]
    )


def exchanged_gradient(
    multiply: Callable[..., jax.Array], x: jax.Array, dy: jax.Array, lead: int, dw_spec: PartitionSpec
) -> jax.Array:
    """The weight's gradient, of each device's tokens (`lead` axes) first, then added up between devices."""
    split = dw_spec.partitions.index("fsdp")
    rest = tuple(axis for axis in mesh_axes(spec_of(dy).partitions[:lead]) if axis != "fsdp")

    def device_gradient(x: jax.Array, dy: jax.Array) -> jax.Array:
        tokens = tuple(range(lead))
        return sum_along(scatter_sum(multiply(x, dy, tokens, tokens), ("fsdp",), split), rest)

    specs = (PartitionSpec(*spec_of(x).partitions), PartitionSpec(*spec_of(dy).partitions))
    return per_device(device_gradient, specs, dw_spec)(reshard(x, specs[0]), dy)
