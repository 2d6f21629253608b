"""Options of the block and of attention on a mesh against one device: loss and gradients, on eight fake devices."""

import json
import subprocess
import sys

import pytest

from experiments.parallelism.rows import LAYOUTS, OPTIONS

# Two compilations of each kind here, every option under every kind of mesh by `make test-slow`.
ALL = ",".join(name for name in OPTIONS if name != "distances in blocks")
CASES = [
    ("context+fsdp+tensor+sequence", "all,distances"),
    *(
        pytest.param(layout, ALL, marks=pytest.mark.slow)
        for layout in (
            "context+fsdp+tensor+sequence",
            "1f1b+fsdp+tensor+sequence",
            "circular+hsdp",
            "zero1+tensor+sequence",
        )
    ),
    pytest.param("fsdp+tensor", ",".join(OPTIONS), marks=pytest.mark.slow),
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
