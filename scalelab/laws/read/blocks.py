"""Columns that set the rows of one budget apart on both sides of a comparison: a width, a data ratio."""

from collections.abc import Mapping, Sequence

LEAST_SHARED = 0.5  # of the values at a budget that either side has: fewer are a coincidence
BLOCKED_BY = ", "  # between the columns of a label


def describe_block(columns: Sequence[str], values: Sequence[object]) -> str:
    """The label of a row's block: `dim=512`, or `dim=512, ratio=20`."""
    return BLOCKED_BY.join(f"{column}={plain_value(value)}" for column, value in zip(columns, values, strict=True))


def plain_value(value: object) -> str:
    """A cell as a label: numbers without the digits of their writing, 512 and 512.0 alike."""
    try:
        return f"{float(str(value)):.6g}"
    except ValueError:
        return str(value).strip()


def follows(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether a column `other` says nothing that `one` does not: each value of one goes with one value of it."""
    return len(set(zip(one, other, strict=True))) == len(set(one))


def find_blocks(
    sides: Sequence[str], places: Sequence[int | None], others: Mapping[str, Sequence[str]], baseline: str
) -> list[str]:
    """The columns of `others` by which runs are paired, where a budget has several rows of a side.

    `sides` and `places` [P]: the side of each row and its budget (None: none of the baseline's). A column counts if it
    varies within a budget on the baseline's side, every variant shares its values, and each of them has as many rows on
    both sides. Of columns that vary together the first one counts.
    """
    labels = [""] * len(sides)
    columns: list[str] = []
    for column, values in others.items():
        finer = [f"{label}\n{value}" for label, value in zip(labels, values, strict=True)]
        rows = list(zip(sides, places, labels, strict=True))
        if _splits(rows, values, baseline) and _is_shared(sides, places, finer, baseline):
            columns.append(column)
            labels = finer
    return columns


def _splits(rows: Sequence[tuple[str, int | None, str]], values: Sequence[str], baseline: str) -> bool:
    """Whether a column varies among the baseline's rows of one budget and one block."""
    cells: dict[tuple[int | None, str], set[str]] = {}
    for (side, place, label), value in zip(rows, values, strict=True):
        if side == baseline:
            cells.setdefault((place, label), set()).add(value)
    return any(len(each) > 1 for each in cells.values())


def _is_shared(sides: Sequence[str], places: Sequence[int | None], labels: Sequence[str], baseline: str) -> bool:
    """Whether every variant has the baseline's labels, in equal numbers, at the budgets that both have."""
    counts: dict[str, dict[int, dict[str, int]]] = {}
    for side, place, label in zip(sides, places, labels, strict=True):
        if place is not None:
            cell = counts.setdefault(side, {}).setdefault(place, {})
            cell[label] = cell.get(label, 0) + 1
    first = counts.get(baseline, {})
    for side, rungs in counts.items():
        pairs = [(first[place], cell) for place, cell in rungs.items() if place in first]
        if not pairs:
            continue
        shared = sum(one[label] == other.get(label) for one, other in pairs for label in one)
        if shared < LEAST_SHARED * sum(len(one.keys() | other.keys()) for one, other in pairs):
            return False
        if side != baseline and not any(len(one.keys() & other.keys()) > 1 for one, other in pairs):
            return False
    return True
