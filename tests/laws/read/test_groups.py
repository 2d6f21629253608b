"""Which rows of a table belong together: by the name of a column, by structure, by seeds; and what is left alone."""

import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.laws.law.names import load_law
from scalelab.laws.read.groups import choose_groups, find_groups

SIZES = np.repeat([1e6, 2e6, 4e6], 4)
CHECKPOINTS = np.tile([1e8, 2e8, 3e8, 4e8], 3)
CHINCHILLA = load_law("chinchilla")


def table(**others):
    return {"N": SIZES, "D": CHECKPOINTS, "loss": np.linspace(4, 3, 12)} | others


@pytest.mark.parametrize(
    ("others", "column"),
    [
        ({"run": np.repeat([7, 8, 9], 4)}, "run"),  # a number, by its name
        ({"run_name": [f"a{i // 4}" for i in range(12)], "id": np.repeat([1, 2, 3], 4)}, "run_name"),
        ({"folder": [f"a{i // 4}" for i in range(12)]}, "folder"),  # text, by structure
        ({"family": ["x"] * 12, "folder": [f"a{i // 4}" for i in range(12)]}, "folder"),
        ({"run": np.arange(12)}, None),  # each row a run of its own
        ({"name": [f"r{i}" for i in range(12)], "size": [f"a{i // 4}" for i in range(12)]}, None),  # named one by one
        ({"d_model": np.repeat([64, 128, 256], 4)}, None),  # a number that follows the size names no run
        ({"dataset": [["c4", "pile"][i % 2] for i in range(12)]}, None),  # several sizes in one: not a run
        ({"run": np.tile([1, 2, 3], 4)}, None),
        ({}, None),
    ],
)
def test_checkpoints_are_found(others, column):
    found = find_groups(table(**others), CHINCHILLA)
    assert (found.column if found else None) == column
    if found:
        assert len(set(found.labels)) == 3 and found.labels[0] == found.labels[3] != found.labels[4]


def test_seeds_of_a_setting_are_found():
    rows = {"N": SIZES, "D": np.repeat([1e8, 2e8, 3e8], 4), "loss": np.linspace(4, 3, 12)}
    assert find_groups(rows, CHINCHILLA) is None  # equal settings without a seed: duplicates, which the design names
    actual = find_groups(rows | {"train.seed": np.tile(np.arange(4), 3)}, CHINCHILLA)
    assert actual.column == "setting" and len(set(actual.labels)) == 3
    grid = table(seed=np.zeros(12))
    assert find_groups(grid, CHINCHILLA) is None


def test_a_column_is_taken_by_name_or_refused():
    assert choose_groups(table(lot=np.repeat([1, 2], 6)), CHINCHILLA, "lot").labels == ["1"] * 6 + ["2"] * 6
    assert choose_groups(table(run=np.repeat([7, 8, 9], 4)), CHINCHILLA, "none") is None
    with pytest.raises(BadInput, match="--cluster=lots: no such column; did you mean 'lot'"):
        choose_groups(table(lot=np.repeat([1, 2], 6)), CHINCHILLA, "lots")
