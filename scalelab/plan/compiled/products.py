"""What multiplies in a compiled GPU program, what computes its attention, and what its forward keeps.

Without a device XLA cannot time candidates and takes a fusion of its own (Triton) for each product; on a card it times
them against cuBLAS and keeps the faster. `compile_step(…, library_products=True)` compiles the other extreme.
"""

import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

from scalelab.plan.compiled.program import (
    ARRAY,
    Instruction,
    array_bytes,
    called_computations,
    count_calls,
    read_computations,
)

Computations = Mapping[str, Sequence[Instruction]]
WAYS = ("triton", "cublas", "other")
ATTENTION_CALLS = {"__cudnn$fmha": "cudnn", "tpu_custom_call": "splash"}
OPERAND = re.compile(r"%([\w.-]+)")
PASSED_ON = ("bitcast", "copy", "get-tuple-element")


@dataclasses.dataclass(frozen=True)
class ProgramFacts:
    """Of one step. `products`: runs by way (Triton fusion, cuBLAS call, neither); `by_source`: those of each place.

    `attention`: cudnn | splash | products (blockwise or plain). `saved_bytes`: what the forward's loop over layers
    stacks for the backward, on one device. `workspace_bytes`: the largest that a cuBLAS call was given.
    """

    attention: str
    saved_bytes: int
    products: dict[str, int]
    by_source: dict[str, dict[str, int]]
    workspace_bytes: int


def read_products(text: str) -> ProgramFacts:
    """Read a program's text (`compiled.as_text()`, or the file of `compile_step(…, program=FILE)`)."""
    computations, entry = read_computations(text)
    times = count_calls(computations, entry)
    by_source: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    inside_triton = _reachable(computations, _triton_fusions(computations))
    workspaces, attention = [0], "products"
    for name, lines in computations.items():
        for line in lines if times.get(name) and name not in inside_triton else ():
            if way := _way(line):
                by_source[_source(line)][way] += times[name]
            if way == "cublas":
                workspaces += [size for kind, size in line.arrays if kind == "s8"]
            target = _target(line)
            attention = next((kernel for call, kernel in ATTENTION_CALLS.items() if target.startswith(call)), attention)
    products = {way: sum(counts[way] for counts in by_source.values()) for way in WAYS}
    sources = {source: dict(counts) for source, counts in sorted(by_source.items())}
    return ProgramFacts(attention, _saved_bytes(computations, times), products, sources, max(workspaces))


def _target(line: Instruction) -> str:
    match = re.search(r'custom_call_target="([^"]*)"', line.rest)
    return match[1] if match else ""


def _is_triton_product(line: Instruction) -> bool:
    return line.operation == "fusion" and bool(re.search(r'"kind":"__triton\w*gemm', line.rest))


def _way(line: Instruction) -> str:
    """How a line multiplies: one of WAYS; "" if it does not."""
    if _is_triton_product(line):
        return "triton"
    if _target(line).startswith("__cublas"):
        return "cublas"
    return "other" if line.operation in ("dot", "convolution") else ""


def _source(line: Instruction) -> str:
    """The place in the model that a product belongs to: `backward: mlp/gate`, `forward: attention scores`, `head`."""
    name = _op_name(line)
    way = "backward" if "transpose(" in name else "forward" if "jvp(" in name else "update"
    if module := re.search(r"(attention|mlp)/(\w+)/dot_general", name):
        return f"{way}: {module[1]}/{module[2]}"
    if "/attention/" in name:
        return f"{way}: attention's own products"
    return "head and loss" if "jvp()" in name else way


def _triton_fusions(computations: Computations) -> Iterator[str]:
    for lines in computations.values():
        for line in lines:
            if _is_triton_product(line):
                yield from called_computations(line)


def _reachable(computations: Computations, names: Iterator[str]) -> set[str]:
    """These computations, and those that they call: a product's own fusion holds the `dot` that it replaces."""
    waiting, reached = list(names), set[str]()
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached.add(name)
            waiting += [called for line in computations.get(name, ()) for called in called_computations(line)]
    return reached


def _saved_bytes(computations: Computations, times: Mapping[str, int]) -> int:
    """Bytes of the arrays into which the forward writes a layer's part at a time, each array once."""
    buffers: dict[tuple[str, str], int] = {}
    fused = {
        called
        for lines in computations.values()
        for line in lines
        if line.operation == "fusion"
        for called in called_computations(line)
    }
    for name, lines in computations.items():
        if not times.get(name) or name in fused or not any(map(_is_of_block, lines)):
            continue
        by_name = {line.name: line for line in lines}
        for line in lines:
            if stacked := _stacked_array(computations, line):
                place, size = stacked
                buffers[name, _root(by_name, computations, place)] = size
    return sum(buffers.values())


def _stacked_array(computations: Computations, line: Instruction) -> tuple[str, int] | None:
    """(name of the array written into, its bytes), of a line that writes one layer's part of it in the forward."""
    if line.operation not in ("fusion", "dynamic-update-slice"):
        return None
    inside = [line]
    if line.operation == "fusion":
        inside = [each for called in called_computations(line) for each in computations.get(called, ())]
    writes = [each for each in inside if each.operation == "dynamic-update-slice" and _is_forward(each)]
    if not writes or not line.type.startswith(("bf16[", "f")):
        return None
    write, types = writes[-1], {each.name: each.type for each in inside}
    outer = OPERAND.findall(line.rest.partition(")")[0])
    into, part = OPERAND.findall(write.rest.partition(")")[0])[:2]
    if write is line:  # in no fusion: the operands' types stand elsewhere, and the array is the first
        return outer[0], sum(size for _, size in line.arrays)
    whole, piece = ARRAY.search(line.type), ARRAY.search(types.get(part, ""))
    if not whole or not piece or piece[2].split(",")[0] != "1" or whole[2].split(",")[0] == "1":
        return None
    by_name = {each.name: each for each in inside}
    while by_name[into].operation in PASSED_ON:
        into = OPERAND.findall(by_name[into].rest)[0]
    number = re.match(r"(\d+)", by_name[into].rest)
    return (outer[int(number[1])], array_bytes(whole[1], whole[2])[1]) if number else None


def _is_forward(line: Instruction) -> bool:
    """Whether a loop of the forward holds the line: that over layers, or the loss's over chunks."""
    name = _op_name(line)
    return bool(re.search(r"/jvp\(\w*\)/while/body/", name)) and "transpose(" not in name


def _is_of_block(line: Instruction) -> bool:
    """Whether the line is of a block's own forward: then its loop is the one over layers."""
    return _is_forward(line) and "/blocks/" in _op_name(line)


def _op_name(line: Instruction) -> str:
    """Where the line was traced, by its metadata."""
    match = re.search(r'op_name="([^"]*)"', line.rest)
    return match[1] if match else ""


def _root(by_name: Mapping[str, Instruction], computations: Computations, name: str) -> str:
    """The array of a loop's carry that `name` is: the same one where it was written before in this round."""
    while line := by_name.get(name):
        if line.operation == "get-tuple-element":
            return line.rest
        if stacked := _stacked_array(computations, line):
            name = stacked[0]
        elif line.operation in PASSED_ON:
            name = OPERAND.findall(line.rest)[0]
        else:
            break
    return name
