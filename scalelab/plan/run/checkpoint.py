"""Cost of a save by `train/checkpoints`: its bytes, the time until they are committed, and the time the step waits."""

import dataclasses
import math

import jax
from jax.sharding import PartitionSpec

from scalelab.config import Static
from scalelab.plan.machine.machine import Machine
from scalelab.train.step import state as state_lib

# A node's rate to shared storage: about Llama 3's (Meta 2024, section 3.3.1), 2 TB/s sustained over its 2,048 nodes.
NODE_WRITE_BYTES_PER_S = 1e9
HOST_DEVICES = 8  # devices of a host where fast links join more (a slice of TPUs); an assumption
# From a device to its host: PCIe 4.0 x16 (32 GB/s) minus its overhead. An assumption; newer hosts have twice as much.
HOST_BYTES_PER_S = 25e9
# The process of each host hashes its share of the files, one thread a file (SHA-256 with CPU instructions).
HASH_BYTES_PER_S = 1.3e9
HASH_THREADS = 8
FILE_BYTES = 2**31  # TensorStore starts a new file of an OCDBT store after so much


@dataclasses.dataclass(frozen=True)
class SaveCost:
    """One checkpoint. The step waits for the first `blocked_s`; after `seconds` it is committed, so a restart finds it.

    `restore_s`: time to read it back, while the hosts hash all of it again.
    """

    parts: dict[str, int]  # bytes of params, opt_state, ema, precision, guard, over all devices
    bytes: int  # their sum and a few counters
    device_bytes: int  # bytes written by the device that writes most
    seconds: float
    blocked_s: float
    restore_s: float
    write_bytes_per_s: float  # over all nodes
    notes: tuple[str, ...]


def estimate_save(
    static: Static, machine: Machine, write_bytes_per_s: float | None = None, asynchronous: bool = True
) -> SaveCost:
    """Bytes and time of one save of a run with this resolved layout.

    Every array is written once, even if several devices hold it: Orbax splits a copied shard among its holders if their
    number divides one of its axes. `write_bytes_per_s`: the storage's rate over all nodes; None: 1 GB/s a node. Not
    `asynchronous`: the step waits for the whole save, as in the models of Young and Daly.
    """
    state, specs = state_lib.state_shapes(static), state_lib.state_specs(static)
    parts = {name: _tree_bytes(getattr(state, name)) for name in ("params", "opt_state", "ema", "precision", "guard")}
    parts = {name: size for name, size in parts.items() if size}
    total = _tree_bytes(state)
    written = jax.tree.map(lambda leaf, spec: _written_bytes(leaf, spec, static), state, specs)
    device_bytes = sum(jax.tree.leaves(written))
    nodes = math.ceil(static.layout.devices / min(machine.devices_per_node, HOST_DEVICES))
    rate = write_bytes_per_s or nodes * NODE_WRITE_BYTES_PER_S
    to_host, moved, hashed = device_bytes / HOST_BYTES_PER_S, total / rate, _hash_time(total / nodes)
    notes = (
        f"storage takes {rate / 1e9:,.3g} GB/s over {nodes:,} nodes"
        + ("" if write_bytes_per_s else f" ({NODE_WRITE_BYTES_PER_S / 1e9:g} a node: Llama 3, section 3.3.1)"),
        f"a device hands its part to the host at {HOST_BYTES_PER_S / 1e9:g} GB/s (PCIe 4.0 x16); an assumption",
        f"each host then hashes its share of the files: {hashed:,.3g} s at {HASH_BYTES_PER_S / 1e9:g} GB/s a file",
    )
    seconds, restore_s = to_host + moved + hashed, max(moved, hashed) + to_host
    return SaveCost(parts, total, device_bytes, seconds, to_host if asynchronous else seconds, restore_s, rate, notes)


def _hash_time(share: float) -> float:
    """Seconds in which a host hashes `share` bytes: no faster than the files in them allow."""
    return share / (min(HASH_THREADS, math.ceil(share / FILE_BYTES)) * HASH_BYTES_PER_S)


def _tree_bytes(tree: object) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _written_bytes(leaf: jax.ShapeDtypeStruct, spec: PartitionSpec, static: Static) -> int:
    """Largest number of bytes of an array that one device writes."""
    split = [1] * len(leaf.shape)
    for axis, names in enumerate(spec):
        for name in (names,) if isinstance(names, str) else names or ():
            split[axis] *= getattr(static.layout, name)
    # A plan may split what does not divide.
    shard = [math.ceil(size / parts) for size, parts in zip(leaf.shape, split, strict=True)]
    copies = static.layout.devices // math.prod(split)
    shares = copies if any(size % copies == 0 for size in shard) else 1
    return math.prod(shard) * leaf.dtype.itemsize // shares
