"""Options of the block and of attention on a mesh against one device: loss and gradients, on eight fake devices."""

import json
import subprocess
import sys

import pytest

from checks.numerics.parallelism.layouts import LAYOUTS, MODEL_OPTIONS

# Every option under tensor and fsdp, most under the others; half a minute each.
MOST = "norms after,window,no positions,short sequences,distances"
CASES = [
    ("context+fsdp+tensor+sequence", "all,distances"),
    ("fsdp+tensor", ",".join(MODEL_OPTIONS)),
    ("context+fsdp", f"parallel block,{MOST}"),
    ("1f1b+fsdp+tensor+sequence", "all,distances,distances in blocks"),
    ("circular+hsdp", "all,parallel block"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "options"), CASES)
def test_options_have_the_loss_and_the_gradients_of_one_device(layout, options, tmp_path):
    path = tmp_path / "rows.json"
    command = [sys.executable, "-m", "checks.numerics.parallelism", f"--only={layout}", f"--options={options}"]
    done = subprocess.run([*command, f"--json={path}"], capture_output=True, text=True)
    assert path.exists(), done.stderr[-2000:]
    rows = json.loads(path.read_text())["rows"]
    assert [row["options"] for row in rows] == options.split(",") and layout in LAYOUTS
    for row in rows:
        assert row["loss_rel_diff"] <= 2e-6 and row["grad_rel_diff"] <= 3e-6, row
    assert done.returncode == 0
