"""`sweep --dry-run`: the batch script where there is no Slurm is the one that sbatch gets where there is."""

import importlib.util
import json
import re

import pytest

from scalelab.__main__ import main
from scalelab.sweep.executors import choice, slurm

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("submitit"), reason="submitit is not installed")
GRID = """from scalelab.configs import tiny

get_config = tiny.get_config


def sweep(h):
    return h.sweep("model.d_model", {widths})
"""
IDLE = """#!/bin/sh
echo "sbatch: fatal: Could not establish a configuration source" >&2
exit 1
"""
SBATCH = """#!/bin/bash
if [ "$1" = --help ]; then echo "--partition --time --array --requeue"; exit; fi
cp "$1" {seen}
echo "Submitted batch job 7"
"""


@pytest.fixture(autouse=True)
def own_choice(monkeypatch):
    """A command's choice of an executor ends with its test."""
    monkeypatch.setattr(choice, "CHOSEN", [])


@pytest.fixture
def no_cluster(tmp_path, monkeypatch):
    """Slurm's client without a cluster, as a distribution installs it: each command fails with its own words."""
    (tmp_path / "idle").mkdir()
    (tmp_path / "idle/sbatch").write_text(IDLE)
    (tmp_path / "idle/sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "idle"), prepend=":")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A stand-in for Slurm's commands, which keeps the script that it is given; the queue is empty."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "srun", "squeue", "scancel", "scontrol"):
        (folder / name).write_text(SBATCH.format(seen=tmp_path / "seen.sh") if name == "sbatch" else "#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return lambda: monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.parametrize("widths", [[64], [32, 64, 96]])
def test_the_script_is_that_of_a_submission(tmp_path, capsys, no_cluster, cluster, widths):
    """Submitted by the same library's own executor, to an sbatch that keeps what it gets: one job, and an array."""
    grid = tmp_path / "grid.py"
    grid.write_text(GRID.format(widths=widths))
    place = tmp_path / "sweep"
    line = ["sweep", f"--config={grid}", f"--workdir={place}", "--executor=slurm"]
    options = ["--slurm.partition=gpu", "--slurm.time=4:00:00", "--max-parallel=2"]
    assert main([*line, *options, "--dry-run"]) == 0
    script, said = capsys.readouterr()
    assert "not checked here: sbatch: Could not establish a configuration source" in said
    assert not place.exists()
    cluster()
    array = slurm.SlurmArray(place, {"partition": "gpu", "time": "4:00:00"}, 2)
    array._submit([f"pack{width}" for width in widths])
    sent = re.sub(r"--comment=[\w-]+", "--comment=SUBMISSION", (tmp_path / "seen.sh").read_text())
    assert script.strip() == sent.strip()


def test_it_refuses_what_a_submission_would_refuse_and_says_the_packs(tmp_path, capsys, no_cluster):
    line = ["sweep", "--config=configs/lr_seeds.py", f"--workdir={tmp_path / 's'}", "--dry-run"]
    assert main([*line, "--executor=slurm", "--slurm.array=1-4"]) == 2
    assert "--max-parallel" in capsys.readouterr().err
    assert main([*line, "--json"]) == 0
    ((_, names),) = json.loads(capsys.readouterr().out)["packs"].items()
    assert len(names) == 8 and not (tmp_path / "s").exists()
