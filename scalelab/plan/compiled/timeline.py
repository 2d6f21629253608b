"""How long a compiled program waits for what it sends, by estimate: its schedule played through, line by line.

Computation runs in the order of the text. What is sent queues behind what was sent before over the same links (within
a node, or between nodes) and goes on meanwhile, until the line that awaits it. Each line takes the longer of its FLOPs
and its bytes, at stated rates. Attention blockwise, as these programs have it, reads more than a chip's own kernel.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scalelab.plan.compiled.program import (
    ARRAY,
    CALLED,
    KINDS,
    Collective,
    Instruction,
    array_bytes,
    called_computations,
    count_rounds,
    describe_collectives,
    join_fused,
    list_groups,
    read_computations,
)
from scalelab.plan.machine.machine import Machine
from scalelab.plan.step.efficiency import default_efficiency, peak_of_unit

Computations = Mapping[str, Sequence[Instruction]]
UNTIMED = ("parameter", "get-tuple-element", "tuple", "constant", "bitcast", "after-all", "partition-id", "iota")
OPERAND = re.compile(r"%([\w.-]+)")
PRODUCTS = ("dot", "convolution")
LIBRARY_PRODUCT = 'custom_call_target="__cublas'


@dataclasses.dataclass(frozen=True)
class Rates:
    """Of one device: FLOPs of a product, bytes of its memory, bytes sent within a node, and between nodes by its port.

    A group that leaves the node sends by the ports of all its devices there.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    near_bytes_per_s: float
    port_bytes_per_s: float
    devices_per_node: int


class Timeline(NamedTuple):
    """Seconds of a step: of computation, of all that is sent, and of waiting for it."""

    computing_s: float = 0.0
    sending_s: float = 0.0
    waiting_s: float = 0.0

    def plus(self, other: "Timeline", times: int = 1) -> "Timeline":
        """The sum of both, the other so many times."""
        return Timeline(*(a + times * b for a, b in zip(self, other, strict=True)))


def machine_rates(machine: Machine, unit: str) -> Rates:
    """The planner's rates before anything is measured (`plan/step/efficiency.py`), for products in `unit`."""
    shares, chip = default_efficiency(machine), machine.chip
    sent = shares.network.expected
    return Rates(
        peak_of_unit(machine, unit)[0] * shares.matmul.expected,
        chip.hbm_bytes_per_s * shares.hbm.expected,
        chip.link_bytes_per_s * chip.links * sent,
        machine.node_bytes_per_s * sent,
        machine.devices_per_node,
    )


def play_schedule(text: str, rates: Rates) -> Timeline:
    """The timeline of a step from a scheduled program's text; a loop without a known number of rounds counts once."""
    computations, entry = read_computations(text)
    return _play(join_fused(computations), computations, entry, rates, {})


def _play(
    joined: Computations, computations: Computations, name: str, rates: Rates, played: dict[str, Timeline]
) -> Timeline:
    """One run of a computation: `joined` is what is scheduled, `computations` what fusions hold."""
    if name in played:
        return played[name]
    lines = joined.get(name, computations.get(name, ()))
    types = {line.name: line.type for line in lines}
    now, free, ends = 0.0, {True: 0.0, False: 0.0}, dict[str, float]()
    total = Timeline()
    for place, line in enumerate(lines):
        kind = line.operation.removesuffix("-start").removesuffix("-done")
        if kind in KINDS and line.operation.endswith("-done"):
            begun = OPERAND.search(line.rest)
            wait = max(0.0, ends.get(begun[1] if begun else "", 0.0) - now)
            now, total = now + wait, total.plus(Timeline(0.0, 0.0, wait))
        elif kind in KINDS:
            near, seconds = _sending(lines, place, rates)
            end = free[near] = max(now, free[near]) + seconds
            waits = 0.0 if line.operation.endswith("-start") else end - now
            ends[line.name], now = end, now + waits
            total = total.plus(Timeline(0.0, seconds, waits))
        elif line.operation in ("while", "conditional", "call"):
            inside = _play_called(joined, computations, line, rates, played)
            now, total = now + inside.computing_s + inside.waiting_s, total.plus(inside)
        elif line.operation not in UNTIMED:
            seconds = _computing_s(computations, line, types, rates)
            now, total = now + seconds, total.plus(Timeline(seconds))
    played[name] = total
    return total


def _play_called(
    joined: Computations, computations: Computations, line: Instruction, rates: Rates, played: dict[str, Timeline]
) -> Timeline:
    """A loop's rounds, or the longest branch of a condition."""
    runs = [_play(joined, computations, name, rates, played) for name in called_computations(line)]
    if line.operation != "while":
        return max(runs, key=lambda run: run.computing_s + run.waiting_s, default=Timeline())
    whole = Timeline()
    for run in runs:
        whole = whole.plus(run, count_rounds(computations, line))
    return whole


def _sending(lines: Sequence[Instruction], place: int, rates: Rates) -> tuple[bool, float]:
    """(whether within a node, seconds) of a collective; pairs count as within one."""
    rows: list[Collective] = list(describe_collectives(lines, place, lines[place], 1))
    sent, groups = sum(row.sent_bytes for row in rows), list_groups(lines[place].rest)
    nodes = [device // rates.devices_per_node for device in groups[0]] if groups else [0]
    if len(set(nodes)) == 1:
        return True, sent / rates.near_bytes_per_s
    return False, sent / min(rates.near_bytes_per_s, rates.port_bytes_per_s * nodes.count(nodes[0]))


def _computing_s(computations: Computations, line: Instruction, types: Mapping[str, str], rates: Rates) -> float:
    called = CALLED.search(line.rest)
    inside = computations.get(called[1], ()) if called and line.operation == "fusion" else ()
    flops = _product_flops(computations, inside) if inside else _flops(line, types)
    read = sum(_bytes(types.get(name, "")) for name in OPERAND.findall(line.rest.partition(")")[0]))
    written = line.type if LIBRARY_PRODUCT not in line.rest else re.sub(r"s8\[\d+\]", "", line.type)  # no workspace
    moved = _fusion_bytes(inside) if inside else read + _bytes(written)
    return max(flops / rates.flops_per_s, moved / rates.memory_bytes_per_s)


def _product_flops(computations: Computations, lines: Sequence[Instruction]) -> float:
    """Of all products within a fusion, and within the fusions in it."""
    types, flops = {line.name: line.type for line in lines}, 0.0
    for line in lines:
        flops += _flops(line, types)
        if line.operation == "fusion" and (called := CALLED.search(line.rest)):
            flops += _product_flops(computations, computations.get(called[1], ()))
    return flops


def _flops(line: Instruction, types: Mapping[str, str]) -> float:
    """2 M K N of a product: its three arrays have M K, K N and M N elements, each times those of the batch."""
    if line.operation not in PRODUCTS and LIBRARY_PRODUCT not in line.rest:
        return 0.0
    operands = OPERAND.findall(line.rest.partition(")")[0])[:2]
    sizes = [_elements(text) for text in (line.type, *(types.get(name, "") for name in operands))]
    batch = re.search(r'lhs_batch_dim(?:s=\{|ensions":\[)([\d,"]+)', line.rest)
    shape = ARRAY.search(types.get(operands[0], "")) if operands else None
    rows = [int(size) for size in shape[2].split(",") if size] if shape else []
    batches = math.prod(rows[int(axis)] for axis in re.findall(r"\d+", batch[1])) if batch and rows else 1
    return 2 * math.sqrt(math.prod(sizes) / batches)


def _fusion_bytes(lines: Sequence[Instruction]) -> float:
    """What a fusion reads and writes: of what it slices the slice, of what it updates in place the update."""
    types = {line.name: line.type for line in lines}
    operands = {line.name: OPERAND.findall(line.rest.partition(")")[0]) for line in lines}
    moved = 0.0
    for line in lines:
        if line.operation == "parameter":
            readers = [other for other in lines if line.name in operands[other.name]]
            moved += min(_bytes(line.type), sum(_read_bytes(line.name, reader, operands) for reader in readers))
    for name in operands[lines[-1].name] if lines[-1].operation == "tuple" else [lines[-1].name]:
        written = next(line for line in lines if line.name == name)
        update = written.operation == "dynamic-update-slice"
        moved += _bytes(types.get(operands[name][1], "")) if update else _bytes(written.type)
    return moved


def _read_bytes(name: str, reader: Instruction, operands: Mapping[str, Sequence[str]]) -> float:
    if reader.operation in ("dynamic-slice", "slice"):
        return _bytes(reader.type)
    in_place = reader.operation == "dynamic-update-slice" and operands[reader.name][0] == name
    return 0.0 if in_place else math.inf


def _bytes(text: str) -> int:
    return sum(array_bytes(*match)[1] for match in ARRAY.findall(text))


def _elements(text: str) -> int:
    match = ARRAY.search(text)
    return math.prod(int(size) for size in match[2].split(",") if size) if match else 0
