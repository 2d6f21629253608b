"""Data movement read from compiled text: bytes of collectives, by the mesh axes that they run along."""

import itertools
import re
from typing import Any

import numpy as np

from scalelab.plan.compiled import program

GROUP_PATTERN = r"\{\{.*?\}\}|\[[\d,]*\]<=\[[\d,]*\](?:T\([\d,]*\))?|mesh\[.*?\{.*?\}"
MEMBERS_PATTERN = re.compile(rf"(replica_groups|source_target_pairs)=({GROUP_PATTERN})")


def collective_bytes(text: str, mesh: Any, *kinds: str) -> dict[str, int]:
    """Bytes of the results of a program's collectives, by mesh axes; in a loop of known length as often as it turns.

    `kinds`: of these alone. Each branch of a conditional counts once.
    A collective over axes of one
    device moves nothing and is not counted.
    """
    split = [axis for axis in mesh.axis_names if mesh.shape[axis] > 1]
    groups = {axes: _groups(mesh, axes) for n in range(1, len(split) + 1) for axes in itertools.combinations(split, n)}
    moved: dict[str, int] = {}
    computations, entry = program.read_computations(text)
    for computation, times in program.count_calls(computations, entry).items():
        for line in computations.get(computation, ()):
            members = MEMBERS_PATTERN.search(line.rest) if line.operation in (kinds or program.KINDS) else None
            if members is None:
                continue
            joined = _pairs(members[2]) if members[1] == "source_target_pairs" else _listed(members[2])
            if max(map(len, joined)) > 1:
                name = " x ".join(
                    next((axes for axes, rings_or_groups in groups.items() if rings_or_groups == joined), ("other",))
                )
                moved[name] = moved.get(name, 0) + times * sum(size for _, size in line.arrays)
    return moved


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
