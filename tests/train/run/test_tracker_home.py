"""A tracker's id belongs to one folder: moved it keeps it, copied it gets another, with a line and `forked_from`."""

import shutil

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from scalelab.train.checkpoints import manifest
from scalelab.train.run.trackers import sinks
from tests.quick import one_in

CONFIG = """
from scalelab.configs import tiny

def get_config():
    config = tiny.get_config()
    config.schedule.name, config.log.sinks = "constant", "ids:kept"
    config.model.n_layers, config.model.n_heads, config.model.d_model, config.model.seq_len = 1, 2, 8, 16
    config.train.global_batch, config.train.steps, config.train.steps_per_dispatch, config.eval.batches = 2, 2, 2, 1
    return config
"""
SINK = """
import pathlib

class Kept:
    def __init__(self, run):
        with open(pathlib.Path(__file__).with_name("seen.txt"), "a") as file:
            file.write(f"{run.tracker_id} {run.record.get('forked_from')}\\n")

    def write(self, step, scalars):
        pass

kept = Kept
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a config, its sink, and a run of two steps."""
    folder = tmp_path_factory.mktemp("tracked")
    (folder / "c.py").write_text(CONFIG)
    (folder / "ids.py").write_text(SINK)
    assert train(folder, folder / "runs" / "first", 2) == 0
    return folder


def train(project, folder, steps):
    return main(["train", f"--config={project}/c.py", f"--workdir={folder}", f"--config.train.steps={steps}"])


def copied(project, name):
    return shutil.copytree(project / "runs" / "first", project / "runs" / name)


def seen(project):
    return (project / "seen.txt").read_text().splitlines()[-1].split()


@pytest.mark.full
def test_a_copy_that_goes_on_gets_its_own_id_and_says_so(project, capsys):
    first = records.read_record(project / "runs" / "first")["tracker_id"]
    copy = copied(project, "second")
    capsys.readouterr()
    assert train(project, copy, 3) == 0
    assert f"second is a copy: its trackers get an id of its own, forked from {first}" in capsys.readouterr().err
    record = records.read_record(copy)
    assert record["forked_from"] == first != record["tracker_id"] and seen(project) == [record["tracker_id"], first]
    facts = manifest.read_manifest(copy / "checkpoints" / "3")["facts"]["run"]
    assert facts["tracker_id"] == record["tracker_id"]
    assert [event["kind"] for event in records.read_events(copy)].count("forked") == 1
    assert train(project, copy, 4) == 0  # from now on it is its own
    assert records.read_record(copy)["tracker_id"] == record["tracker_id"] and "copy" not in capsys.readouterr().err
    assert records.read_record(copy)["forked_from"] == first
    assert records.read_record(project / "runs" / "first")["tracker_id"] == first


@pytest.mark.full
@pytest.mark.parametrize("way", one_in(4, ["renamed", "parent", "disk", "record lost"]))
def test_a_folder_that_was_moved_keeps_its_id(project, way, capsys):
    folder = copied(project, way.replace(" ", "_"))
    records.write_json(folder / "record.json", records.read_record(folder) | sinks.bind_tracker(folder, {}))
    tracker_id = records.read_record(folder)["tracker_id"]
    if way == "renamed":
        folder = folder.rename(folder.with_name("other_name"))
    elif way == "parent":
        (project / "parent_before").mkdir()
        shutil.move(folder, project / "parent_before" / "run")
        folder = (project / "parent_before").rename(project / "parent_after") / "run"
    elif way == "disk":
        folder = shutil.copytree(folder, project / "elsewhere")
        shutil.rmtree(project / "runs" / way)
    else:
        (folder / "record.json").unlink()
        tracker_id = records.read_record(project / "runs" / "first")["tracker_id"]
    assert train(project, folder, 3) == 0
    if way == "record lost":  # its checkpoint knows the id and the folder, which this is a copy of
        assert records.read_record(folder)["forked_from"] == tracker_id
    else:
        assert records.read_record(folder)["tracker_id"] == tracker_id and "copy" not in capsys.readouterr().err


def test_a_run_that_appears_on_another_machine_counts_as_a_copy_and_one_of_an_older_version_is_bound(project):
    folder = copied(project, "machine")
    record = records.read_record(folder)
    away = {"place": str(project / "no" / "such" / "run"), "inode": 0}
    assert sinks.bind_tracker(folder, record | {"tracker_home": away})["forked_from"] == record["tracker_id"]
    old = {key: value for key, value in record.items() if key != "tracker_home"}
    bound = sinks.bind_tracker(folder, old)
    assert bound["tracker_id"] == record["tracker_id"] and bound["tracker_home"]["place"].endswith("machine")


def test_a_run_in_a_store_is_bound_to_its_url(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / "one"))
    folder = tmp_path / "one" / "stores" / "work" / "s3" / "bucket" / "run"
    record = sinks.bind_tracker(folder, {})
    assert record["tracker_home"]["place"] == "s3://bucket/run"
    monkeypatch.setenv("SCALELAB_CACHE", str(tmp_path / "two"))  # a fresh machine
    again = tmp_path / "two" / "stores" / "work" / "s3" / "bucket"
    assert sinks.bind_tracker(again / "run", record)["tracker_id"] == record["tracker_id"]
    assert sinks.bind_tracker(again / "copy", record)["forked_from"] == record["tracker_id"]
