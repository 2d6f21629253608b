"""What a save costs: the bytes that `train/checkpoints/checkpoint.py` writes, how long until they are committed, how long the step waits."""

import dataclasses
import math

import jax
from jax.sharding import PartitionSpec

from scalelab.config import Static
from scalelab.plan.machine.machine import Machine
from scalelab.train.step import state as state_lib

# Of a node, to a storage that all share. Llama 3 (Meta 2024, section 3.3.1) states 2 TB/s sustained; on its 2,048 nodes, about this.
NODE_WRITE_BYTES_PER_S = 1e9
HOST_DEVICES = 8  # that share a host where fast links join more (a slice of TPUs); an assumption
# From a device to its host: PCIe 4.0 x16 (32 GB/s) less its overhead. An assumption; newer hosts have twice as much.
HOST_BYTES_PER_S = 25e9
# The first process reads every file back and hashes it, on up to 8 threads of about 1.3 GB/s (SHA-256 with the CPU's instructions).
HASH_BYTES_PER_S = 8 * 1.3e9


@dataclasses.dataclass(frozen=True)
class SaveCost:
    """One checkpoint. Its first `blocked_s` hold the step up; after `seconds` it is committed and a restart finds it.

    `restore_s`: of reading it back, while the first process hashes all of it again.
    """

    parts: dict[str, int]  # bytes of params, opt_state, ema, precision, over all devices
    bytes: int  # their sum, and a few counters
    device_bytes: int  # of these, what the device that writes most writes
    seconds: float
    blocked_s: float
    restore_s: float
    write_bytes_per_s: float  # over all nodes
    notes: tuple[str, ...]


def estimate_save(
    static: Static, machine: Machine, write_bytes_per_s: float | None = None, asynchronous: bool = True
) -> SaveCost:
    """What one save of a run with this resolved layout writes, and how long it takes.

    Every array is written once, whatever holds copies of it: Orbax splits a copied shard among those that hold it, where
    one of its axes can be divided by their number. `write_bytes_per_s` is that of the storage, over all nodes; None: 1 GB/s
    a node. Not `asynchronous`: the step waits for all of it, as in the models of Young and Daly.
    """
    state, specs = state_lib.state_shapes(static), state_lib.state_specs(static)
    parts = {name: _tree_bytes(getattr(state, name)) for name in ("params", "opt_state", "ema", "precision")}
    parts = {name: size for name, size in parts.items() if size}
    total = _tree_bytes(state)
    own = jax.tree.map(lambda leaf, spec: _written_bytes(leaf, spec, static), state, specs)
    device_bytes = sum(jax.tree.leaves(own))
    nodes = math.ceil(static.layout.devices / min(machine.devices_per_node, HOST_DEVICES))
    rate = write_bytes_per_s or nodes * NODE_WRITE_BYTES_PER_S
    to_host, moved, hashed = device_bytes / HOST_BYTES_PER_S, total / rate, total / HASH_BYTES_PER_S
    notes = (
        f"storage takes {rate / 1e9:,.3g} GB/s over {nodes:,} nodes"
        + ("" if write_bytes_per_s else f" ({NODE_WRITE_BYTES_PER_S / 1e9:g} a node: Llama 3, section 3.3.1)"),
        f"a device hands its part to the host at {HOST_BYTES_PER_S / 1e9:g} GB/s (PCIe 4.0 x16); an assumption",
        f"the first process then hashes all files: {hashed:,.3g} s at {HASH_BYTES_PER_S / 1e9:.3g} GB/s",
    )
    seconds, restore_s = to_host + moved + hashed, max(moved, hashed) + to_host
    return SaveCost(parts, total, device_bytes, seconds, to_host if asynchronous else seconds, restore_s, rate, notes)


def _tree_bytes(tree: object) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _written_bytes(leaf: jax.ShapeDtypeStruct, spec: PartitionSpec, static: Static) -> int:
    """Bytes of an array that the device with the most of it writes."""
    split = [1] * len(leaf.shape)
    for axis, names in enumerate(spec):
        for name in (names,) if isinstance(names, str) else names or ():
            split[axis] *= getattr(static.layout, name)
    # Uneven stages: the fullest has one layer more.
    shard = [math.ceil(size / parts) for size, parts in zip(leaf.shape, split, strict=True)]
    copies = static.layout.devices // math.prod(split)
    shares = copies if any(size % copies == 0 for size in shard) else 1
    return math.prod(shard) * leaf.dtype.itemsize // shares
