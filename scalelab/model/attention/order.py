"""Which tokens of a sequence each device holds where a mesh splits sequences: one of its head and one of its tail.

Of n devices, the i-th has chunks i and 2n - 1 - i of the 2n in a sequence (zigzag; Dubey et al. 2024, section 3.3.2):
causal attention is then equal work for all. Rows are dealt so once, where inputs and targets are split
(`documents.py`); the rest of the model need only know positions. Sums over tokens don't depend on the order.

Shapes: B batch, S sequence, D d_model.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import reshard

from scalelab.sharding import CONTEXT_AXIS, activation_spec, mesh_axis_size, per_device, reshard_to


def chunk_order(devices: int) -> list[int]:
    """The chunks of a sequence in the order that devices hold them, two each."""
    return [chunk for i in range(devices) for chunk in (i, 2 * devices - 1 - i)]


def deal(x: jax.Array, axis: int = 1, back: bool = False) -> jax.Array:
    """Put the tokens along `axis`, whole on each device, in the order of devices, or `back` in the sequence's."""
    devices = mesh_axis_size(CONTEXT_AXIS)
    if devices == 1:
        return x
    chunks, order = jnp.split(x, 2 * devices, axis), chunk_order(devices)
    return jnp.concatenate([chunks[i] for i in (np.argsort(order) if back else order)], axis)


def token_positions(length: int) -> jax.Array | None:
    """The position of each token in its sequence [1, S], where they are not 0, 1, …; else None."""
    if mesh_axis_size(CONTEXT_AXIS) == 1:
        return None
    return reshard_to(deal(jnp.arange(length)[None]), None, "context")


def held_position(device: Any, index: Any, chunk: int) -> jax.Array:
    """The position in the sequence of the `index`-th token that a device holds, of two chunks of so many tokens."""
    tail = 2 * mesh_axis_size(CONTEXT_AXIS) - 2 - device
    return jnp.where(index < chunk, device, tail) * chunk + index


def restore(x_BSD: jax.Array) -> jax.Array:
    """Put hidden states back in the order of the sequence, for functions that don't know of another (the user's)."""
    return _exchange(x_BSD, back=True)


def redeal(x_BSD: jax.Array) -> jax.Array:
    """Put hidden states from the order of the sequence into the order of devices."""
    return _exchange(x_BSD, back=False)


def _exchange(x_BSD: jax.Array, back: bool) -> jax.Array:
    """Each device holds a chunk of even number and one of odd number in both orders, so each pair changes places."""
    devices = mesh_axis_size(CONTEXT_AXIS)
    if devices == 1:
        return x_BSD
    pairs = [sorted((i, 2 * devices - 1 - i), key=lambda chunk: chunk % 2) for i in range(devices)]
    moves = [[(i, pair[odd] // 2) for i, pair in enumerate(pairs)] for odd in (0, 1)]

    def send(x: jax.Array, odd: int) -> jax.Array:
        return jax.lax.ppermute(x, CONTEXT_AXIS, moves[odd] if back else [(b, a) for a, b in moves[odd]])

    def swap_on_odd(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        swaps = jax.lax.axis_index(CONTEXT_AXIS) % 2 == 1
        return jnp.where(swaps, y, x), jnp.where(swaps, x, y)

    def on_device(x_BsD: jax.Array) -> jax.Array:
        first, second = jnp.split(x_BsD, 2, axis=1)
        even, odd = swap_on_odd(first, second) if back else (first, second)
        even, odd = send(even, 0), send(odd, 1)
        return jnp.concatenate((even, odd) if back else swap_on_odd(even, odd), axis=1)

    spec = activation_spec("batch", "context", None)
    moved = per_device(on_device, (spec,), spec)(reshard_to(x_BSD, "batch", "context", None))
    return reshard(moved, jax.typeof(x_BSD).sharding.spec)
