"""Packs as commands: they train what the pool trains; other engines' files say the same, by those engines' schemas."""

import os
import re
import subprocess

import pytest
import yaml

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.record import records
from scalelab.sweep.executors import choice, jobs, manifest
from scalelab.sweep.run import run_sweep
from tests.sweep.test_pack import TINY
from tests.train.runs import ROOT, untimed

CHECKER = ROOT / ".venv-manifest" / "bin" / "python"  # with skypilot and JobSet's models: `make test-manifest`


def trials(count=1):
    points = [TINY | {"model.d_model": 16 + 8 * i, "sweep.workers": 1} for i in range(count)]
    return {f"d{i}": config_lib.resolve(override(tiny.get_config(), point)) for i, point in enumerate(points)}


def written(folder, monkeypatch, count=3):
    """The manifest of a sweep: its commands."""
    monkeypatch.setattr(choice, "CHOSEN", [choice.Choice("manifest")])
    verdicts = run_sweep(folder, trials(count))
    assert set(verdicts.values()) == {"waiting"}
    monkeypatch.setattr(choice, "CHOSEN", [])
    return (folder / "manifest" / "commands.txt").read_text().splitlines()


@pytest.mark.full
def test_a_command_trains_what_the_pool_trains_and_again_changes_nothing(tmp_path, monkeypatch):
    (line,) = written(tmp_path / "there", monkeypatch, 1)
    assert line.startswith("scalelab sweep ")
    monkeypatch.setattr(jobs, "log_to", lambda place: None)  # this process's output is the test's
    assert main(line.split()[1:]) == 0
    run_sweep(tmp_path / "here", trials())
    run = tmp_path / "there" / "runs" / "d0"
    assert records.read_record(run)["status"] == "done"
    assert untimed(run) == untimed(tmp_path / "here" / "runs" / "d0")
    assert run_sweep(tmp_path / "there", trials()) == {"d0": "done"}


def test_each_index_of_the_jobset_trains_one_pack(tmp_path, monkeypatch):
    lines = written(tmp_path / "s", monkeypatch)
    jobset = yaml.safe_load((tmp_path / "s" / "manifest" / "jobset.yaml").read_text())
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    (tmp_path / "scalelab").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "scalelab").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    outputs = [
        subprocess.run(
            container["command"],
            env={"PATH": path, "JOB_COMPLETION_INDEX": str(i)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for i in range(job["completions"])
    ]
    packs = [re.search(r"--pack=(\w+)", line)[1] for line in lines]
    assert outputs == [f"sweep --workdir=/sweep --pack={pack}\n" for pack in packs] and len(set(packs)) == 3
    sky = (tmp_path / "s" / "manifest" / "skypilot.yaml").read_text()
    assert all(f"--env PACK={pack} " in sky for pack in packs)


@pytest.mark.parametrize("name", ["My Sweep!", "-9_", "ü", "a" * 99, ""])
def test_names_are_those_of_kubernetes(name):
    assert (
        re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", manifest.dns_name(name)) and len(manifest.dns_name(name)) <= 40
    )


DAMAGES = {
    "": "",
    "completionMode: Indexed": "completionMood: Indexed",
    "backoffLimitPerIndex: 2": "backoffLimitPerIndex: 'x'",
    "recover_on_exit_codes": "recover_on_codes",
    "use_spot: true": "use_spot: maybe",
}


@pytest.mark.skipif(not CHECKER.exists(), reason="`make test-manifest` installs what the schemas are published in")
@pytest.mark.parametrize("part, damaged", DAMAGES.items())
def test_the_published_schemas_take_them_and_refuse_damaged_ones(tmp_path, monkeypatch, part, damaged):
    written(tmp_path / "s", monkeypatch)
    for path in (tmp_path / "s" / "manifest").glob("*.yaml"):
        path.write_text(path.read_text().replace(part, damaged))
    checker = [CHECKER, ROOT / "tests/sweep/executors/published_schemas.py", tmp_path / "s" / "manifest"]
    done = subprocess.run(checker, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is (not part), done.stderr[-2000:]
