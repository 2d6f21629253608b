"""The rows of a batch on this process's devices, and the global array assembled from the rows of every process."""

import jax
import numpy as np
from jax.sharding import Sharding


def local_row_indices(sharding: Sharding, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Indices along `axis` of an array of `shape` on this process's devices, ascending, int64 [R].

    They need not be contiguous (a mesh may interleave the hosts), and tensor peers in two processes hold the same ones.
    """
    indices = filter(None, sharding.addressable_devices_indices_map(shape).values())
    parts = {index[axis].indices(shape[axis]) for index in indices}
    return np.unique(np.concatenate([np.arange(*part) for part in parts]))


def assemble_global_array(sharding: Sharding, local: np.ndarray, rows: np.ndarray, axis: int, size: int) -> jax.Array:
    """The global array of length `size` along `axis`, from `local`: this process's `rows` (`local_row_indices`)."""

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        start, stop, _ = index[axis].indices(size)
        first = int(np.searchsorted(rows, start))
        return local[(*index[:axis], slice(first, first + stop - start), *index[axis + 1 :])]

    shape = (*local.shape[:axis], size, *local.shape[axis + 1 :])
    return jax.make_array_from_callback(shape, sharding, part)
