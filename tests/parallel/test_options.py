"""Options of the block and of attention on a mesh against one device: loss and gradients, on eight fake devices."""

import json
import subprocess
import sys

import pytest

from experiments.parallelism.rows import LAYOUTS, OPTIONS

# Two compilations here; by `make test-slow` every option under tensor and fsdp, and most under the others.
MOST = "norms after,window,no positions,short sequences,distances"
CASES = [
    ("context+fsdp+tensor+sequence", "all,distances"),
    pytest.param("fsdp+tensor", ",".join(OPTIONS), marks=pytest.mark.slow),
    pytest.param("context+fsdp", f"parallel block,{MOST}", marks=pytest.mark.slow),
    pytest.param("1f1b+fsdp+tensor+sequence", "all,distances,distances in blocks", marks=pytest.mark.slow),
    pytest.param("circular+hsdp", "all,parallel block", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("layout", "options"), CASES)
def test_options_have_the_loss_and_the_gradients_of_one_device(layout, options, tmp_path):
    path = tmp_path / "rows.json"
    command = [sys.executable, "-m", "experiments.parallelism", f"--only={layout}", f"--options={options}"]
    done = subprocess.run([*command, f"--json={path}"], capture_output=True, text=True)
    assert path.exists(), done.stderr[-2000:]
    rows = json.loads(path.read_text())["rows"]
    assert [row["options"] for row in rows] == options.split(",") and layout in LAYOUTS
    for row in rows:
        assert row["loss_rel_diff"] <= 2e-6 and row["grad_rel_diff"] <= 3e-6, row
    assert done.returncode == 0
