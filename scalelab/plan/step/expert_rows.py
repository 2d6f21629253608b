"""Rows of a device's experts in a micro-batch: those that are useful, that are sent, and that products multiply.

Symbols: T tokens of a micro-batch on the device, K experts of a token, E experts, P devices along `expert`.
"""

import functools
import math
from typing import NamedTuple

from scalelab.config import Layout as LayoutOfMesh
from scalelab.config import ModelShape, Static, with_fields
from scalelab.model.experts.exchange import Buffers, size_buffers, takes_turns
from scalelab.model.experts.rows import Layout, count_slots
from scalelab.model.experts.ways import choose_way
from scalelab.model.stacks import kinds
from scalelab.plan.machine.machine import Machine
from scalelab.plan.step import links
from scalelab.plan.step.block_products import block_products
from scalelab.plan.step.device_share import fullest_device_share, sequences_per_device
from scalelab.plan.step.systems import OUR_TRAITS, SystemTraits
from scalelab.precision.policy import POLICIES, array_dtype
from scalelab.sharding import target_platform

ON_ANY = "gpu"  # what is sent, and dropped, is alike on all platforms
# Bytes of gathers and scatters of rows on a TPU, in those of passes: fitted (checks/speed/step_times/experts.py).
ROW_PASSES_ON_TPU = 9.0


def useful_rows(static: Static, traits: SystemTraits = OUR_TRAITS) -> float:
    """T K: what a device multiplies where all have equally many."""
    return own_tokens(static, traits) * static.model.experts_per_token


def own_tokens(static: Static, traits: SystemTraits) -> float:
    """Tokens of a micro-batch that a device routes: T, or its part of them along `tensor`."""
    return fullest_device_share(static).tokens / _over_tensor(static, traits)


def _over_tensor(static: Static, traits: SystemTraits) -> int:
    """Devices along `tensor` between which whole experts are divided; 1 where they split each expert."""
    return static.layout.tensor if traits.experts_over_tensor else 1


def product_layout(static: Static, traits: SystemTraits) -> LayoutOfMesh:
    """The mesh that splits an expert's matrices: without `tensor` where experts are whole."""
    layout = static.layout
    return with_fields(layout, tensor=layout.tensor // _over_tensor(static, traits))


@functools.cache
def device_buffers(static: Static, platform: str) -> Buffers:
    """The buffers of the trainer's program on a device (model/experts/exchange.py)."""
    shape, layout = static.model, static.layout
    tokens = max(1, math.ceil(fullest_device_share(static).tokens))
    factor = layout.expert_buffer if layout.expert > 1 else 0.0
    experts = -(-shape.n_experts // layout.expert) * layout.expert  # filled up where they don't divide
    may_turn = takes_turns(shape, layout.stage > 1, platform)
    return size_buffers(tokens, experts, shape.experts_per_token, layout.expert, factor, may_turn)


@functools.cache
def row_layout(static: Static, platform: str) -> Layout:
    """How the trainer's program on a `platform` lays out a device's rows, by `model.expert_products`."""
    shape, buffers = static.model, device_buffers(static, platform)
    here, each = buffers.peers * buffers.rows, min(shape.experts_per_token, buffers.local)
    mean = math.ceil(useful_rows(static))
    slots = count_slots(shape.expert_capacity, mean, buffers.local) if shape.expert_capacity else 0
    return choose_way(shape.expert_products, platform, slots).layout(here, here * each, buffers.local)


def held_rows(static: Static, platform: str) -> float:
    """Rows that a device has room for in the products of its experts."""
    buffers = device_buffers(static, platform)
    return float(row_layout(static, platform).count_rows(buffers.multiplied, buffers.local))


def multiplied_rows(static: Static, platform: str, traits: SystemTraits = OUR_TRAITS) -> float:
    """Rows that the products of the fullest device's experts multiply.

    Ours: by `model.expert_products` on the `platform`. Where all blocks or slots are multiplied at once, as many as
    there is room for, whatever the loads are; loops end with the load, half a block an expert later. Other systems'
    grouped products multiply rows alone. Rows that are taken in turns fill up the last one. `traits.imbalance` is the
    load of the fullest device over the mean.
    """
    fullest = useful_rows(static, traits) * (traits.imbalance if static.layout.expert > 1 else 1.0)
    if traits.grouped_products:
        return fullest
    layout, buffers = row_layout(static, platform), device_buffers(static, platform)
    if layout.slack:  # a block (model/experts/ways.py)
        most = math.inf if buffers.in_turns else buffers.multiplied
        return min(fullest, most) + buffers.local * layout.slack / 2
    return held_rows(static, platform) * (math.ceil(fullest / buffers.multiplied) if buffers.in_turns else 1)


class ProductRows(NamedTuple):
    """Rows that a product multiplies on a device in a micro-batch.

    `matrices` of weights share them, `at_once` with one. `turns`: of a GPU's loop; elsewhere a turn needs no launch.
    """

    rows: float
    matrices: int
    at_once: float
    turns: float = 0.0


def expert_product_rows(static: Static, platform: str, traits: SystemTraits = OUR_TRAITS) -> ProductRows:
    """Those of the fullest device's experts; a loop takes block after block."""
    rows, matrices = multiplied_rows(static, platform, traits), count_matrices(static, platform, traits)
    block = 0 if platform != "gpu" or traits.grouped_products else row_layout(static, platform).slack
    return ProductRows(
        rows, matrices, min(block, rows / matrices) if block else rows / matrices, rows / (block or math.inf)
    )


def count_matrices(static: Static, platform: str, traits: SystemTraits = OUR_TRAITS) -> int:
    """Matrices between which the rows of one product are divided: a device's experts, or a copy for each block."""
    experts = math.ceil(static.model.n_experts / (static.layout.expert * _over_tensor(static, traits)))
    align = 1 if traits.grouped_products else row_layout(static, platform).align
    return math.ceil(held_rows(static, platform) / align) if align > 1 else experts


def matrix_entries(static: Static, platform: str) -> int:
    """Entries of all matrices that the rows of a layer are multiplied by on a device (`count_matrices`).

    Compilers hold them, and their gradients in fp32, at once (checks/results/compiled.md). Gradients of rows that are
    taken in turns are added up beside those of a turn.
    """
    of_kinds = [
        sum(math.prod(p.device_size(static.layout)) for p in block_products(kind) if p.experts)
        for kind in kinds(static.model)
    ]
    if not any(of_kinds):
        return 0
    buffers = device_buffers(static, platform)
    return round(max(of_kinds) * (count_matrices(static, platform) + buffers.in_turns * buffers.local))


def sent_rows(static: Static, traits: SystemTraits = OUR_TRAITS) -> float:
    """Rows that a device has for all devices along `expert`, itself among them, and gets from them, in one exchange."""
    if traits.sends == "buffers":
        buffers = device_buffers(static, ON_ANY)
        return float(buffers.peers * buffers.rows)
    copies: float = static.model.experts_per_token
    if traits.sends != "copies":
        copies = reached_parts(static.model, static.layout.expert)
    return own_tokens(static, traits) * copies


def row_bytes(static: Static) -> tuple[int, int]:
    """(bytes of a sent row of d_model, of the numbers and weights of its experts beside it, in fp32)."""
    shape = static.model
    return array_dtype(POLICIES[static.precision].compute).itemsize * shape.d_model, 4 * 2 * shape.experts_per_token


def returns_drops(static: Static, traits: SystemTraits = OUR_TRAITS) -> bool:
    """Whether our experts may have less room than rows, and send back how many experts each row lacks."""
    shape, buffers = static.model, device_buffers(static, ON_ANY)
    full = buffers.peers * buffers.rows * min(shape.experts_per_token, buffers.local)
    less = buffers.multiplied < full and not buffers.in_turns
    return traits.sends == "buffers" and bool(shape.expert_capacity or less)


def split_by_domain(static: Static, machine: Machine, whole: float, once_a_node: bool) -> tuple[float, float]:
    """(what a device sends within its domain, over the network) of an exchange of `whole` bytes.

    A domain is a node, or the devices that share NVLink, or a slice of TPUs. `once_a_node`: a token crosses the network
    once for each other domain that it goes to, and is passed on there.
    """
    size, near = static.layout.expert, links.devices_within_node(static.layout, machine, "expert")
    if not once_a_node or near in (1, size):
        return whole * (near - 1) / size, whole * (size - near) / size
    domains, token = size // near, whole / reached_parts(static.model, size)
    crossing = reached_parts(static.model, domains) * (domains - 1) / domains
    return whole * (near - 1) / near, token * crossing


def exchange_s(static: Static, machine: Machine, whole: float, once_a_node: bool, share: float) -> float:
    """Seconds of an exchange of `whole` bytes a device at this share of the datasheet's rates.

    Links of a domain and its network carry their parts at once. In a torus a row takes a quarter of a ring's hops.
    """
    layout, size = static.layout, static.layout.expert
    near, far = split_by_domain(static, machine, whole, once_a_node)
    fast = links.domain_bytes_per_s(layout, machine, "expert")
    if machine.chip.links > links.SWITCHED:
        near *= max(1.0, size ** (1 / links.torus_dimensions(layout, machine, "expert")) / 4)
    return max(near / (fast * share), far / (machine.node_bytes_per_s * share), math.log2(size) * links.HOP_S)


def gathers_experts(static: Static) -> bool:
    """Whether experts' weights are split along `fsdp` in a step, and gathered layer by layer: ZeRO 1 and 2 as well.

    In a pipeline ZeRO 1 and 2 leave them whole (parallel/rules.py).
    """
    layout = static.layout
    return bool(static.model.n_experts) and layout.fsdp > 1 and layout.zero >= (1 if layout.stage == 1 else 3)


def row_factor(static: Static, platform: str, traits: SystemTraits = OUR_TRAITS) -> float:
    """Rows that are multiplied over those that are useful; 1 without experts."""
    return multiplied_rows(static, platform, traits) / useful_rows(static, traits) if static.model.n_experts else 1.0


def reached_parts(shape: ModelShape, parts: int) -> float:
    """Of so many equal `parts` of the experts, how many a token's experts lie in, mean over even routing.

    Without groups its experts are any K of E. With groups it takes the best of the best groups, and a part that holds
    whole groups is reached if one of them is (DeepSeek-V3, section 2.1.2: a token goes to 4 nodes at most).
    """
    if shape.router_groups > 1 and shape.router_groups % parts == 0:
        return _expected_parts(shape.router_groups, shape.router_groups_per_token, parts)
    if shape.router_groups > 1 and parts % shape.router_groups == 0:
        groups, each = shape.router_groups_per_token, parts // shape.router_groups
        return _expected_parts(groups * shape.n_experts // shape.router_groups, shape.experts_per_token, groups * each)
    return _expected_parts(shape.n_experts, shape.experts_per_token, parts)


def _expected_parts(n: int, k: int, parts: int) -> float:
    """Parts of n things that hold one of k drawn ones at least: parts (1 - C(n - n / parts, k) / C(n, k)).

    Of more parts than things n hold one thing each.
    """
    parts = min(parts, n)
    within = n // parts
    missed = math.comb(n - within, k) / math.comb(n, k) if n - within >= k else 0.0
    return parts * (1 - missed)


def buffered_bytes(static: Static, recomputed: bool) -> int:
    """Bytes of a sequence in a block with experts that `expert` adds to what a device's own tokens take.

    Rows as they arrive, and the first products' results; where `fsdp` splits no weights, rows as they are sorted. The
    working set of a backward has these, hidden units, and gradients of results, of sorted rows and of what goes back.
    """
    shape, layout, policy = static.model, static.layout, POLICIES[static.precision]
    if layout.expert == 1 or not (routed := [p for p in block_products(shape) if p.experts]):
        return 0
    platform, each = target_platform(), array_dtype(policy.compute).itemsize
    units = sum(p.device_size(layout)[1] for p in routed if p.from_stream)
    hidden = units + sum(p.device_size(layout)[0] for p in routed if not p.from_stream) if recomputed else 0

    def held(static: Static) -> float:
        sorted_rows = held_rows(static, platform)
        arrived = sent_rows(static) * sum(row_bytes(static))
        return arrived + each * (shape.d_model * (3 if recomputed else not layout.zero) + units + hidden) * sorted_rows

    apart = with_fields(layout, data=layout.data * layout.expert, expert=1, expert_buffer=0.0)
    more = held(static) - held(with_fields(static, layout=apart))
    return max(0, math.ceil(more / sequences_per_device(static)))


def moved_rows(static: Static, platform: str, traits: SystemTraits = OUR_TRAITS) -> float:
    """Rows of d_model read and written to sort tokens by expert and to add up outputs.

    An expert's row is read and written, and read once more to be added; so is each that comes from another device.
    """
    there = multiplied_rows(static, platform, traits)
    sent = 3 * sent_rows(static, traits) if static.layout.expert > 1 else 0.0
    return (ROW_PASSES_ON_TPU if platform == "tpu" else 1.0) * (3 * there + own_tokens(static, traits) + sent)
