"""What a collective moves, which links an axis of the mesh runs along, and what it costs on them.

Devices are numbered with `tensor` innermost and `stage` outermost (parallel/mesh.py): an axis's neighbours are as far
apart as the axes inside it are large. Within a node all links are the fast ones; an axis that leaves it takes the
network, and as many of the node's network ports as the axis has devices there.
"""

import dataclasses
import math

from scalelab.config import Layout
from scalelab.parallel.mesh import MESH_AXES
from scalelab.plan.machine.machine import Machine
from scalelab.sharding import EXPERT_AXIS

HOP_S = 1e-6  # a message's least time to the next chip (Scaling Book, part 3: "typically around 1us")
INSIDE = {axis: MESH_AXES[i + 1 :] for i, axis in enumerate(MESH_AXES)}  # the axes inside of each
SWITCHED = 1  # `Chip.links` of a GPU: one port to a switch that joins all of a node
SPLITTING = ("tensor", "context", "expert")  # axes whose devices share the work of a sequence


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A collective along `axis`: `whole_bytes` of the array once gathered (or before it is scattered), `times` a step.

    `hidden`: computing that doesn't wait for it can go on meanwhile. `once_a_node`: of an exchange of experts' rows,
    whether a token crosses the network once for each node that it goes to (`expert_rows.split_by_domain`).
    `of_weights`: along an axis that splits the work of a sequence, whether it sums gradients of weights instead.
    """

    axis: str
    kind: str  # all-gather | reduce-scatter | all-reduce | all-to-all | send
    whole_bytes: float
    times: float
    hidden: bool
    what: str
    once_a_node: bool = False
    of_weights: bool = False

    @property
    def sends_rows(self) -> bool:
        """Whether it is an exchange of experts' rows: all-to-all along `expert`."""
        return self.axis == EXPERT_AXIS and self.kind == "all-to-all"

    @property
    def splits_work(self) -> bool:
        """Whether it belongs to the work on a sequence that devices share, micro-batch by micro-batch."""
        return self.axis in SPLITTING and not self.of_weights

    @property
    def in_ticks(self) -> bool:
        """Whether each tick of a pipeline waits for it, so that idle stages wait as long."""
        # Before or after the ticks all stages exchange at once what uneven ones lay out.
        return self.splits_work or (self.axis == "stage" and self.kind != "all-to-all")


def axis_stride(layout: Layout, axis: str) -> int:
    """How far apart neighbours along `axis` are, in devices."""
    return math.prod([getattr(layout, inner) for inner in INSIDE[axis]])


def devices_within_node(layout: Layout, machine: Machine, axis: str) -> int:
    """How many devices of a group along `axis` are of one node."""
    return max(1, min(getattr(layout, axis), machine.devices_per_node // axis_stride(layout, axis)))


def crosses_nodes(layout: Layout, machine: Machine, axis: str) -> bool:
    """Whether groups along `axis` span nodes (of TPUs: slices)."""
    return devices_within_node(layout, machine, axis) < getattr(layout, axis)


def torus_dimensions(layout: Layout, machine: Machine, axis: str) -> int:
    """Dimensions of the torus that serve `axis`: one each, what is left goes to the largest; 1 behind a switch.

    With more axes than dimensions, some share one; their collectives are taken to come one after the other.
    """
    if machine.chip.links <= SWITCHED:
        return 1
    sizes = {other: devices_within_node(layout, machine, other) for other in MESH_AXES}
    split = [other for other, size in sizes.items() if size > 1]
    left = machine.chip.links // 2 - len(split)
    largest = max(split, key=lambda other: sizes[other], default="")
    return 1 + max(left, 0) if axis == largest else 1


def bytes_per_s(layout: Layout, machine: Machine, axis: str, size: int | None = None, kind: str = "") -> float:
    """What a device sends a second in a collective of this `kind` along `axis`: peak, no efficiency in it.

    A torus sends both ways where a dimension closes to a ring: from 4 chips on with 6 links (optical switches), 16 with
    4 (Scaling Book, parts 2 and 3). A "send" to the neighbour goes one way over one link, or over the device's own port
    of the network: only collectives are spread over all ports of a node.
    """
    chip, size = machine.chip, size or devices_within_node(layout, machine, axis)
    if kind == "send":
        return machine.node_bytes_per_s if crosses_nodes(layout, machine, axis) else chip.link_bytes_per_s
    fast = domain_bytes_per_s(layout, machine, axis, size)
    if not crosses_nodes(layout, machine, axis):
        return fast
    near = devices_within_node(layout, machine, axis)
    network = near * machine.node_bytes_per_s
    return min(fast, network) if near > 1 else network


def domain_bytes_per_s(layout: Layout, machine: Machine, axis: str, size: int | None = None) -> float:
    """What a device sends a second along `axis` within a node (of TPUs: a slice)."""
    size = size or devices_within_node(layout, machine, axis)
    fast = machine.chip.link_bytes_per_s
    if machine.chip.links > SWITCHED:
        fast *= 2 if closes_ring(machine, size) else 1
        fast *= torus_dimensions(layout, machine, axis)
    return fast


def closes_ring(machine: Machine, size: int) -> bool:
    """Whether `size` chips of a torus along one dimension make a ring."""
    return size >= (4 if machine.chip.links >= 6 else 16)


# What a device sends of the whole array, in shares of it: a ring's n - 1 turns of 1 / n each.
SENDS = {"all-gather": 1, "reduce-scatter": 1, "all-to-all": 1, "all-reduce": 2}


def ring_s(kind: str, whole_bytes: float, size: int, rate: float, hop_s: float = HOP_S) -> float:
    """Seconds of a collective over `size` devices at `rate`; `whole_bytes`: the gathered, or not yet scattered, array.

    "send" passes `whole_bytes` on to the neighbour. V (n - 1) / n over the bandwidth, twice that for an all-reduce
    (Thakur et al. 2005; Patarasuk & Yuan 2009), and no less than its hops take.
    """
    if size == 1:
        return 0.0
    if kind == "send":
        return max(whole_bytes / rate, hop_s)
    turns = SENDS[kind] * (size - 1)
    # Small messages go by a tree, in log2 n steps each way (NCCL; XLA's latency-bound forms do as well).
    return max(turns / size * whole_bytes / rate, SENDS[kind] * math.log2(size) * hop_s)
