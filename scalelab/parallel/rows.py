"""Which rows of a batch the devices of this process hold, and the global array made of each process's own rows."""

import jax
import numpy as np
from jax.sharding import Sharding


def local_row_indices(sharding: Sharding, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Indices along `axis` of an array of `shape` that this process's devices hold, ascending, int64 [R].

    They need not be neighbours (a mesh may interleave the hosts), and two processes may hold the same ones (tensor peers).
    """
    indices = filter(None, sharding.addressable_devices_indices_map(shape).values())
    parts = {index[axis].indices(shape[axis]) for index in indices}
    return np.unique(np.concatenate([np.arange(*part) for part in parts]))


def assemble_global_array(sharding: Sharding, local: np.ndarray, rows: np.ndarray, axis: int, size: int) -> jax.Array:
    """The global array that is `size` long along `axis`; this process has it at `rows` (as `local_row_indices` says), in `local`."""

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        start, stop, _ = index[axis].indices(size)
        first = int(np.searchsorted(rows, start))
        return local[(*index[:axis], slice(first, first + stop - start), *index[axis + 1 :])]

    shape = (*local.shape[:axis], size, *local.shape[axis + 1 :])
    return jax.make_array_from_callback(shape, sharding, part)
