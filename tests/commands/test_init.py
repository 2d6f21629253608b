"""`scalelab init`: the project that it writes, its refusals, its Slurm job with a stand-in for Slurm."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from scalelab.__main__ import main

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("init")
    assert main(["init", "study7", f"--into={folder}"]) == 0
    return folder / "study7"


def test_a_project_is_written_with_its_name_and_its_config_resolves(project, monkeypatch, capsys):
    assert "PROJECT" not in "".join(path.read_text() for path in project.iterdir())
    assert "#SBATCH --job-name=study7" in (project / "job.sbatch").read_text()
    monkeypatch.chdir(project)
    assert main(["config", "--config=config.py", "optim.name", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["values"][0]["value"] == "functions:soft_signs"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("study7", "exists and is not an empty folder: nothing is overwritten"),
        ("my study", "nearest: my_study"),
        ("7th", "nearest: th"),
        ("../up", "nearest: up"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(project, capsys, name, line):
    before = sorted(project.parent.rglob("*"))
    assert main(["init", name, f"--into={project.parent}"]) == 2
    assert line in capsys.readouterr().err
    assert sorted(project.parent.rglob("*")) == before


def program(path, text):
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("code", "saves", "array", "expected", "requeued"),
    [
        (0, True, {}, 0, ""),
        (1, True, {}, 1, ""),
        (75, True, {}, 0, "requeue 41"),
        (75, True, {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "3"}, 0, "requeue 40_3"),
        (75, False, {}, 1, ""),  # stopped before a step was saved: again it would circle
    ],
)
def test_the_job_is_requeued_where_it_saved_a_new_step(project, tmp_path, code, saves, array, expected, requeued):
    """srun and scontrol are stand-ins; the run is a line of shell that saves a checkpoint, or none, and exits."""
    (tmp_path / "runs/one/checkpoints/5").mkdir(parents=True)
    save = "mkdir -p runs/one/checkpoints/20; " if saves else ""
    program(tmp_path / "srun", f"{save}exit {code}\n")
    program(tmp_path / "scontrol", 'echo "$*" > requeued\n')
    environment = os.environ | array | {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "41"}
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["bash", str(project / "job.sbatch")], env=environment, capture_output=True, text=True)
    assert done.returncode == expected, done.stderr
    log = tmp_path / "requeued"
    assert (log.read_text().strip() if log.exists() else "") == requeued


def test_a_signal_before_the_end_of_the_job_reaches_the_run(project, tmp_path):
    """USR1 goes to the batch script alone (`B:`), which hands it to srun and waits for what the run then answers."""
    (tmp_path / "runs/one/checkpoints").mkdir(parents=True)
    answer = "mkdir -p runs/one/checkpoints/9; exit 75"
    program(tmp_path / "srun", f"trap '{answer}' USR1; kill -USR1 $PPID; while true; do sleep 0.05; done\n")
    program(tmp_path / "scontrol", 'echo "$*" > requeued\n')
    environment = os.environ | {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "41"}
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(["bash", str(project / "job.sbatch")], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "requeued").read_text().strip() == "requeue 41"


@pytest.mark.slow
def test_the_project_passes_its_own_test_with_a_wheel_beside_a_package_named_configs(tmp_path):
    """Nothing of the checkout is on the path: a wheel, and a project with packages of the names of our folders."""
    left_out = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__", "runs", "site", "build")
    shutil.copytree(ROOT, tmp_path / "tree", symlinks=True, ignore=left_out)  # a build leaves files in its tree
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", f"--wheel-dir={tmp_path}", str(tmp_path / "tree")]
    subprocess.run(wheel, check=True)
    (file,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", f"--target={site}", str(file)], check=True
    )
    assert {path.name for path in site.iterdir() if "-" not in path.name} <= {"scalelab", "bin", "share"}
    assert (site / "share/doc/scalelab/docs/tasks.md").exists()
    rooms = {path.name for path in (ROOT / "checks").glob("*/") if (path / "__init__.py").exists()}
    assert len(rooms) >= 8 and not rooms & {path.name for path in (site / "scalelab" / "experiments").rglob("*")}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"PYTHONPATH": str(site)}
    start = [sys.executable, "-P", "-m"]
    subprocess.run([*start, "scalelab", "init", "apart"], cwd=tmp_path, env=environment, check=True)
    place = tmp_path / "apart"
    for name in ("configs", "experiments"):
        (place / name).mkdir()
        (place / name / "__init__.py").write_text("OURS = True\n")
    (place / "test_names.py").write_text(
        "import configs, experiments, scalelab\n"
        f"def test_names():\n    assert configs.OURS and experiments.OURS and scalelab.__file__.startswith('{site}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=place, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
