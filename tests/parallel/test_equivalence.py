"""Layouts of a mesh against one device: loss, gradients, bytes, on eight fake devices in processes of their own."""

import itertools
import json
import subprocess
import sys

import pytest

from checks.numerics.parallelism import layouts
from checks.numerics.parallelism.experts import LOSS

# Three axes at once; `make test-slow` takes more schedules, `make test-parallel` all 25 layouts, and two models each.
PARTS = [
    "context+fsdp+tensor+sequence",
    pytest.param("zero1,data,hsdp+tensor+sequence", marks=pytest.mark.slow),
    pytest.param("circular+hsdp,interleaved+fsdp+tensor,1f1b+fsdp+tensor+sequence", marks=pytest.mark.slow),
]


@pytest.mark.full
@pytest.mark.parametrize("names", PARTS)
def test_loss_gradients_and_bytes_of_each_layout(names, tmp_path):
    path = tmp_path / "rows.json"
    command = [sys.executable, "-m", "checks.numerics.parallelism", "--quick", f"--only={names}", f"--json={path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert path.exists(), done.stderr[-2000:]
    result = json.loads(path.read_text())
    assert sorted(row["layout"] for row in result["rows"]) == sorted(names.split(","))
    for row in result["rows"]:
        assert row["loss_rel_diff"] <= 2e-6 and row["grad_rel_diff"] <= 3e-6 and row["sums_rel_diff"] <= 2e-6, row
        assert row["argument_bytes"] == pytest.approx(row["argument_bytes_formula"], rel=2e-3), row
        moved, split = row["collective_bytes"], {axis for axis, size in row["mesh"].items() if size > 1}
        assert {axis for axes in moved for axis in axes.split(" x ")} == split, row
        if row["layout"] == "data":  # every gradient once, in fp32: a third of the Adam state
            assert moved["data"] == pytest.approx(row["argument_bytes_formula"] / 3, rel=0.01)
        assert row["bubble_measured"] == pytest.approx(row["bubble_predicted"])
    for remaining in result["temporaries"]:
        few, many = remaining["bytes_by_microbatches"].values()  # at 2 and at 16 micro-batches a stage
        assert many <= 1.05 * few if remaining["schedule"] == "1f1b" else many > 1.4 * few
    for row in result["rows_bf16"]:
        assert row["loss_rel_diff"] <= 1e-2 and row["grad_rel_diff"] <= 1e-2, row
    assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["expert+fsdp+tensor+sequence", "1f1b+expert+fsdp"])
def test_loss_gradients_and_bytes_of_experts_with_skewed_loads(name, tmp_path):
    path = tmp_path / "rows.json"
    command = [sys.executable, "-m", "checks.numerics.parallelism", "--quick", f"--experts={name}", f"--json={path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert path.exists(), done.stderr[-2000:]
    (row,) = json.loads(path.read_text())["experts"]
    assert row["skewed"] and row["grad_rel_diff"] <= 3e-6 and row["loss_rel_diff"] <= LOSS, row
    assert done.returncode == 0


def test_the_variants_cover_all_pairs_of_levels():
    drawn = [v for i in range(len(layouts.LAYOUTS)) for v in layouts.model_variants(i)]
    for (a, levels_a), (b, levels_b) in itertools.combinations(layouts.MODEL_FACTORS.items(), 2):
        assert {(v[a], v[b]) for v in drawn} == set(itertools.product(levels_a, levels_b)), (a, b)
    for i in range(len(layouts.LAYOUTS)):
        first, second = layouts.model_variants(i)
        assert all(first[name] != second[name] for name in layouts.MODEL_FACTORS)
