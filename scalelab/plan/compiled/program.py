"""What a compiled program moves between devices, read from XLA's text of it.

A loop whose number of rounds the compiler knows (layers, micro-batches, chunks) counts that often. A loop without one
(the steps of a dispatch) counts once, so the numbers are those of a step. Only scheduled text tells what runs between
the start and the done of a collective.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
TYPE_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128}  # others end in their bits: f32, s8, f8e4m3fn, u4
ARRAY = re.compile(r"\b(pred|bf16|[fsuc]\d+(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*)")
COMPUTATION = re.compile(r"(ENTRY )?%?([\w.-]+) \(.*\{$")
CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
ROUNDS = re.compile(r'known_trip_count"?:\{"n":"(\d+)"')
COMPUTES = ("fusion", "dot", "convolution", "custom-call", "while", "call", "conditional", "sort", "scatter")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """A line of a computation: its name, its type as text, its operation, and the rest of the line."""

    name: str
    type: str
    operation: str
    rest: str

    @property
    def arrays(self) -> list[tuple[str, int]]:
        """(number format, bytes) of each array of the result."""
        return [array_bytes(*match) for match in ARRAY.findall(self.type)]


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective of one number format.

    `payload_bytes`: what is gathered, reduced or sent, whole, each time, in bytes; `members`: devices that take part.
    """

    kind: str
    format: str
    payload_bytes: int
    members: int
    times: int
    overlapped: bool  # started and awaited apart, with computation between
    source: str  # where the model asks for it

    @property
    def sent_bytes(self) -> float:
        """What a device sends a step in the ring algorithm (Patarasuk & Yuan 2009)."""
        share = (self.members - 1) / self.members if self.members else 1.0
        factor = {"all-reduce": 2 * share, "collective-permute": 1.0}.get(self.kind, share)
        return factor * self.payload_bytes * self.times


def array_bytes(number_format: str, shape: str) -> tuple[str, int]:
    """The number format and the bytes of `bf16[2,3]`, taken apart."""
    digits = re.match(r"[fsuc](\d+)", number_format)
    bits = TYPE_BITS.get(number_format) or int(digits[1] if digits else 8)
    return number_format, math.ceil(math.prod(int(size) for size in shape.split(",") if size) * bits / 8)


def read_computations(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """{computation: its instructions in order}, and the name of the entry."""
    computations: dict[str, list[Instruction]] = {}
    entry, lines = "", list[Instruction]()
    for line in text.splitlines():
        if head := COMPUTATION.match(line):
            lines = computations.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif match := INSTRUCTION.match(line):
            lines.append(Instruction(*match.groups()))
    return computations, entry


def count_calls(computations: Mapping[str, Sequence[Instruction]], entry: str) -> dict[str, int]:
    """How often each computation runs in a step."""
    times: collections.Counter[str] = collections.Counter()

    def visit(name: str, count: int) -> None:
        times[name] += count
        for line in computations.get(name, ()):
            for called in called_computations(line):
                visit(called, count * (count_rounds(computations, line) if line.operation == "while" else 1))

    visit(entry, 1)
    return dict(times)


def called_computations(line: Instruction) -> list[str]:
    """Names of the computations that an instruction calls: a fusion's, a loop's, the branches of a condition."""
    branches = [name.strip().lstrip("%") for listed in BRANCHES.findall(line.rest) for name in listed.split(",")]
    return [*CALLED.findall(line.rest), *branches]


def count_rounds(computations: Mapping[str, Sequence[Instruction]], loop: Instruction) -> int:
    """The rounds of a `while`: what the compiler says, or the constant that its counter stays below; 1 if unknown."""
    if match := ROUNDS.search(loop.rest):
        return int(match[1])
    condition = re.search(r"condition=%?([\w.-]+)", loop.rest)
    lines = computations.get(condition[1], ()) if condition else ()
    limits = [line for line in lines if line.operation == "constant" and line.type.startswith("s32[]")]
    below = [line for line in lines if line.operation == "compare" and "direction=LT" in line.rest]
    if len(limits) == len(below) == 1 and f"%{limits[0].name})" in below[0].rest:
        return int(limits[0].rest.partition(")")[0])
    return 1


def read_collectives(text: str) -> list[Collective]:
    """The collectives of a step, in a row for each number format that one carries."""
    computations, entry = read_computations(text)
    times = count_calls(computations, entry)
    rows = []
    for name, lines in join_fused(computations).items():
        if times.get(name):
            rows += [
                row for place, line in enumerate(lines) for row in describe_collectives(lines, place, line, times[name])
            ]
    return rows


def join_fused(computations: Mapping[str, Sequence[Instruction]]) -> dict[str, list[Instruction]]:
    """The computations with a TPU's fused collectives in place of the fusions that they are in.

    There a collective beside computation is named in three fusions or more: that which starts it, those of products
    during which it goes on, and that which awaits it; here it becomes a start and a done. A fusion `all-reduce-scatter`
    of an all-reduce and a slice is a reduce-scatter: the whole sum has no buffer, and its ring makes one phase of two.
    """
    inner = {name: [line for line in lines if line.operation in KINDS] for name, lines in computations.items()}
    ends, joined = ("async-collective-start", "async-collective-done"), dict[str, list[Instruction]]()
    parts = {name for name in computations if name.startswith("async_collective_fusion")}

    def replace(line: Instruction) -> Instruction:
        called = CALLED.search(line.rest)
        if line.operation == "fusion" and called and called[1].startswith("all-reduce-scatter"):
            parts.add(called[1])
            return Instruction(line.name, line.type, "reduce-scatter", f"{inner[called[1]][0].rest} {line.rest}")
        if line.operation != "fusion" or not line.name.startswith(ends) or not called or not inner.get(called[1]):
            return line
        parts.add(called[1])
        (one, *_), start = inner[called[1]], line.name.startswith(ends[0])
        channel = f"channel-{(re.search(r'channel_id=([0-9]+)', one.rest) or [''])[0]}"
        return (
            Instruction(channel, one.type, f"{one.operation}-start", one.rest)
            if start
            else Instruction(line.name, one.type, f"{one.operation}-done", f"%{channel})")
        )

    for name, lines in computations.items():
        joined[name] = [replace(line) for line in lines]
    return {name: lines for name, lines in joined.items() if name not in parts}


def describe_collectives(
    lines: Sequence[Instruction], place: int, line: Instruction, times: int
) -> Iterator[Collective]:
    """The collective that starts at `lines[place]`, in a row for each number format; nothing of another line."""
    kind = line.operation.removesuffix("-start")
    if kind not in KINDS:
        return
    overlapped, result = False, line
    if line.operation.endswith("-start"):
        end = next(
            i
            for i in range(place, len(lines))
            if f"%{line.name})" in f"{lines[i].rest.split(',')[0]})" and lines[i].operation == f"{kind}-done"
        )
        overlapped = '"is_sync":true' not in line.rest and any(
            between.operation in COMPUTES for between in lines[place + 1 : end]
        )
        result = lines[end]
    members = count_members(line.rest)
    source = re.search(r'op_name="([^"]*)"', line.rest)
    scale = members if kind == "reduce-scatter" else 1
    sums: collections.Counter[str] = collections.Counter()
    for number_format, size in result.arrays:
        sums[number_format] += size * scale
    for number_format, size in sums.items():
        yield Collective(kind, number_format, size, members, times, overlapped, source[1] if source else "")


def count_members(attributes: str) -> int:
    """How many devices one group of a collective has, from its attributes; 0 for pairs."""
    groups = list_groups(attributes)
    return len(groups[0]) if groups else 0


def list_groups(attributes: str) -> list[list[int]]:
    """The devices of each group of a collective, from its attributes; [] for pairs, and where all are one group."""
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", attributes):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", match[1])}
        axes = [list(sizes).index(name) for name in re.findall(r"'(\w+)'", match[2])]
        return _groups_along(tuple(sizes.values()), axes)
    if match := re.search(r"replica_groups=\[\d+,(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes):
        shape = [int(size) for size in match[2].split(",")]
        order = [int(axis) for axis in match[3].split(",")] if match[3] else range(len(shape))
        return np.arange(math.prod(shape)).reshape(shape).transpose(order).reshape(-1, int(match[1])).tolist()
    if match := re.search(r"replica_groups=\{(\{[\d,]*\}(?:,\{[\d,]*\})*)\}", attributes):
        return [[int(device) for device in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", match[1])]
    return []


def _groups_along(shape: tuple[int, ...], axes: Sequence[int]) -> list[list[int]]:
    """Groups of the devices of a mesh that differ in these axes only."""
    numbers = np.moveaxis(np.arange(math.prod(shape)).reshape(shape), axes, range(-len(axes), 0))
    return numbers.reshape(-1, math.prod(shape[axis] for axis in axes)).tolist()


def large_copies(text: str, least_bytes: int) -> dict[str, int]:
    """{operation and type: how many} of copies, transposes and converts of at least so many bytes, fused or not."""
    computations, entry = read_computations(text)
    times = count_calls(computations, entry)
    made: collections.Counter[str] = collections.Counter()
    for name, lines in computations.items():
        for line in lines if times.get(name) else ():
            kind = re.match(r"(?:wrapped_|loop_)?(copy|transpose|convert)(?:_fusion|[.\d]|$)", line.name)
            if line.operation in ("copy", "transpose", "fusion") and kind:
                for number_format, shape in ARRAY.findall(line.type):
                    if array_bytes(number_format, shape)[1] >= least_bytes:
                        made[f"{kind[1]} {number_format}[{shape}]"] += times[name]
    return dict(made)


def count_host_transfers(text: str) -> int:
    """How many instructions of a step send to or receive from the host."""
    computations, entry = read_computations(text)
    times = count_calls(computations, entry)
    words = ("send", "recv", "infeed", "outfeed")
    return sum(
        times[name]
        for name, lines in computations.items()
        if times.get(name)
        for line in lines
        if line.operation in words or "S(5)" in line.type
    )
