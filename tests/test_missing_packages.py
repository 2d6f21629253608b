"""Without the packages that machines with an accelerator often lack: a run trains, and what needs one says so."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from scalelab.train.lineage import facts

ROOT = pathlib.Path(__file__).parents[1]
HIDDEN = ("grain", "zstandard", "tensorboardX", "tensorflow_datasets", "importlib_resources")
# Python imports `sitecustomize` at its start: from then on these packages are found neither as modules nor by version.
SITECUSTOMIZE = f"""
import importlib.machinery, importlib.metadata
HIDDEN = {HIDDEN!r}
find_module = importlib.machinery.PathFinder.find_spec
find_package = importlib.metadata.Distribution.from_name

def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in HIDDEN else find_module(name, path, target)

def from_name(name):
    if name.replace("-", "_") in HIDDEN:
        raise importlib.metadata.PackageNotFoundError(name)
    return find_package(name)

importlib.machinery.PathFinder.find_spec = find_spec
importlib.metadata.Distribution.from_name = from_name
"""


@pytest.fixture
def bare(tmp_path):
    """A function that runs a command where the packages are hidden."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITECUSTOMIZE)

    def run(*arguments):
        environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "scalelab", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.full
def test_a_run_trains_without_them_and_its_record_names_only_what_is_installed(bare, tmp_path):
    options = ["--config.train.steps=4"]
    done = bare("train", f"--config={ROOT / 'configs' / 'tiny.py'}", "--workdir=run", *options)
    assert done.returncode == 0, done.stderr
    versions = json.loads((tmp_path / "run" / "record.json").read_text())["versions"]
    assert "jax" in versions and "grain" not in versions


def test_a_feature_that_needs_one_is_refused_in_one_line(bare, tmp_path):
    (tmp_path / "a.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    cases = [
        (["train", f"--config={ROOT / 'configs' / 'tiny.py'}", "--workdir=run", "--config.log.tensorboard=true"],
         "log.tensorboard=True needs a package that is not installed: pip install tensorboardX"),
        (["prepare", "--out=shards", "--source=a.jsonl.zst", "--tokenizer=bytes"],
         "zstandard data and needs a package that is not installed: pip install zstandard"),
        (["prepare", "--out=shards", "--source=tfds:lambada", "--tokenizer=bytes"],
         "a data set tfds:NAME needs a package that is not installed: pip install tensorflow-datasets"),
    ]  # fmt: skip
    for arguments, message in cases:
        done = bare(*arguments)
        assert done.returncode == 2, (arguments, done.stderr)
        assert done.stderr.count("\n") == 1 and message in done.stderr
        assert not (tmp_path / "run" / "record.json").exists() and not (tmp_path / "shards").exists()


def test_a_package_that_is_gone_is_a_change_of_versions(monkeypatch):
    before = {"versions": facts.package_versions() | {"grain": "0.2.18"}}
    monkeypatch.setattr(facts, "installed_versions", lambda packages: {"jax": before["versions"]["jax"]})
    assert "grain 0.2.18 -> None" in facts.describe_version_changes(before)
