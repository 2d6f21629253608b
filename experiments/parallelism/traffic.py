"""Data movement read from compiled text: bytes of collectives, by the mesh axes that they run along."""

import itertools
import re
from typing import Any

import numpy as np

COLLECTIVE_KINDS = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"
GROUP_PATTERN = r"\{\{.*?\}\}|\[[\d,]*\]<=\[[\d,]*\](?:T\([\d,]*\))?|mesh\[.*?\{.*?\}"
COLLECTIVE_PATTERN = re.compile(
    rf"= (.*?) (?:{COLLECTIVE_KINDS})\(.*?(replica_groups|source_target_pairs)=({GROUP_PATTERN})"
)
DTYPE_BYTES = {"f32": 4, "bf16": 2, "s32": 4, "u32": 4, "pred": 1, "f16": 2}  # bytes


def collective_bytes(text: str, mesh: Any) -> dict[str, int]:
    """Bytes of the results of a program's collectives, by mesh axes; in a loop of known length as often as it turns.

    Each branch of a conditional counts once. A collective over axes of one device moves nothing and is not counted.
    """
    split = [axis for axis in mesh.axis_names if mesh.shape[axis] > 1]
    groups = {axes: _groups(mesh, axes) for n in range(1, len(split) + 1) for axes in itertools.combinations(split, n)}
    moved: dict[str, int] = {}
    for computation, times in _turns(text):
        for shapes, kind, listed in COLLECTIVE_PATTERN.findall(computation):
            joined = _pairs(listed) if kind == "source_target_pairs" else _listed(listed)
            if max(map(len, joined)) > 1:
                name = " x ".join(
                    next((axes for axes, rings_or_groups in groups.items() if rings_or_groups == joined), ("other",))
                )
                moved[name] = moved.get(name, 0) + times * _bytes(shapes)
    return moved


def _turns(text: str) -> list[tuple[str, int]]:
    """(text, number of executions) of every computation that the entry reaches."""
    computations = re.findall(r"^(ENTRY )?%?([\w.\-]+) \(.*?\{$(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    bodies, entry = (
        {name: body for _, name, body in computations},
        next(name for first, name, _ in computations if first),
    )
    times: dict[str, int] = {}

    def visit(name: str, turns: int) -> None:
        times[name] = times.get(name, 0) + turns
        for line in bodies[name].splitlines():
            trip_count = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line)
            callees = re.findall(r"(?:body|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)", line)
            for branches in re.findall(r"branch_computations=\{(.*?)\}", line):
                callees += [branch.strip().lstrip("%") for branch in branches.split(",")]
            for callee in callees:
                visit(callee, turns * (int(trip_count[1]) if trip_count else 1))

    visit(entry, 1)
    return [(bodies[name], turns) for name, turns in times.items()]


def _pairs(text: str) -> frozenset:
    """The rings that {{from,to},…} form."""
    rings: dict[int, set[int]] = {}
    for pair in re.findall(r"\{(\d+),(\d+)\}", text):
        ring = set().union(*[rings.get(int(i), {int(i)}) for i in pair])
        rings |= dict.fromkeys(ring, ring)
    return frozenset(frozenset(ring) for ring in rings.values())


def _groups(mesh: Any, axes: tuple[str, ...]) -> frozenset:
    """The device groups that a collective along `axes` joins; axes of size one add nothing."""
    ids = np.vectorize(lambda d: d.id)(mesh.devices)
    last = [mesh.axis_names.index(a) for a in axes]
    moved = np.moveaxis(ids, last, range(-len(last), 0)).reshape(-1, int(np.prod([ids.shape[i] for i in last])))
    return frozenset(frozenset(group.tolist()) for group in moved)


def _listed(text: str) -> frozenset:
    """Parse XLA's notations of replica groups: {{0,1},{2,3}}; [4,2]<=[2,4]T(1,0); mesh['a'=2,'b'=4], ids {'b'}."""
    if text.startswith("{"):
        return frozenset(frozenset(int(i) for i in g.split(",")) for g in re.findall(r"\{([\d,]+)\}", text))
    if text.startswith("["):
        shape, dims, order = re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text).groups()
        return _rows(_iota(dims, order).reshape(_ints(shape)))
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", text)}
    grouped = re.findall(r"'(\w+)'", text[text.rindex("{") :])
    ordered = re.search(r"device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)", text)
    ids = _iota(ordered[1], ordered[2]) if ordered else np.arange(np.prod(list(sizes.values())))
    last = [list(sizes).index(name) for name in grouped]
    moved = np.moveaxis(ids.reshape(list(sizes.values())), last, range(-len(last), 0))
    return _rows(moved.reshape(-1, int(np.prod([sizes[name] for name in grouped]))))


def _iota(dims: str, order: str | None) -> np.ndarray:
    ids = np.arange(np.prod(_ints(dims))).reshape(_ints(dims))
    return ids.transpose(_ints(order)) if order else ids


def _ints(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _rows(groups: np.ndarray) -> frozenset:
    return frozenset(frozenset(group.tolist()) for group in groups.reshape(groups.shape[0], -1))


def _bytes(shapes: str) -> int:
    return sum(
        DTYPE_BYTES.get(kind, 4) * int(np.prod([int(d) for d in dims.split(",") if d] or [1]))
        for kind, dims in re.findall(r"(\w+)\[([\d,]*)\]", shapes)
    )
