"""A user's function whose source changed between stop and resume: named, refused, or allowed by name and recorded."""

import shutil

import pytest

from scalelab.__main__ import main
from scalelab.record import listing, records
from scalelab.record.identity import identity
from scalelab.train.checkpoints import manifest
from tests.forks import forget_shapes
from tests.train.checkpoints.test_manifest import forge
from tests.train.runs import SMALL

CONFIG = """
from scalelab.configs import tiny

def get_config():
    config = tiny.get_config()
    config.schedule.name = "mine:rate"
    config.train.metrics = "seen:values"
    config.optim.peak_lr = 0.01
    config.model.n_layers = 1
    config.train.steps = 4
    config.checkpoint.every_steps = config.eval.every_steps = config.train.steps_per_dispatch = 2
    return config

def sweep(h):
    return h.sweep("train.seed", [0])
"""
RATE = """
import pathlib
import factors

SHARE = float(pathlib.Path(__file__).with_name("share.txt").read_text())

def rate(step, h):
    return h.optim.peak_lr * factors.SCALE * SHARE + 0 * step
"""
METRICS = "def values(arrays):\n    return {}\n"
FILES = {"c.py": CONFIG, "mine.py": RATE, "factors.py": "SCALE = 1.0\n", "share.txt": "1", "seen.py": METRICS}


def project(folder, **changed):
    folder.mkdir()
    for name, text in (FILES | {f"{name}.py": text for name, text in changed.items()}).items():
        (folder / name).write_text(text)
    return folder / "c.py"


def train(config, folder, *options):
    return main(["train", f"--config={config}", f"--workdir={folder}", *SMALL, *options])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Four steps under the functions of FILES; the folder holds them, too."""
    folder = tmp_path_factory.mktemp("own")
    assert train(project(folder / "first"), folder / "run") == 0
    return folder


@pytest.fixture
def run(tmp_path, whole):
    shutil.copytree(whole / "run", tmp_path / "run")
    return tmp_path / "run"


def facts(folder, step):
    return manifest.read_manifest(folder / "checkpoints" / str(step))["facts"]["run"]


@pytest.mark.full
def test_the_manifest_and_the_record_hold_the_hashes_and_the_curve(whole):
    stored = facts(whole / "run", 4)["own_code"]
    assert set(stored["schedule.name"]["files"]) == {"mine.py", "factors.py"}  # scalelab itself isn't hashed
    assert stored["schedule.name"]["curve"] == dict.fromkeys("0123", pytest.approx(0.01))
    assert set(stored["train.metrics"]["files"]) == {"seen.py"}
    record = records.read_record(whole / "run")
    assert record["own_code"] == stored and record["identity"] == facts(whole / "run", 4)["identity"]


@pytest.mark.full
def test_a_record_whose_hash_was_edited_is_damaged(run):
    record = records.read_record(run)
    record["own_code"]["schedule.name"]["files"]["mine.py"] = 64 * "0"
    records.write_json(run / "record.json", record)
    assert main(["runs", str(run)]) == 2


@pytest.mark.full
def test_an_edited_module_that_the_schedule_imports_is_refused_by_name_or_marks_the_run(tmp_path, run, capsys):
    edited = project(tmp_path / "second", factors="SCALE = 0.01\n")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert train(edited, run, "--config.train.steps=6") == 2
    error = capsys.readouterr().err
    assert "code.schedule.name='factors.py" in error and "--allow-change=code.schedule.name" in error
    assert "LR 0.01 at step 0" in error and "LR 0.0001 at step 0" in error
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert train(edited, run, "--config.train.steps=6", "--allow-change=code.schedule.name") == 0
    assert "code.schedule.name factors.py" in listing.read_run(run)["mixed"]
    assert listing.read_run(run)["mixed"].endswith("at step 4")
    assert train(edited, run, "--config.train.steps=6") == 0  # done, under the code that it ended with
    capsys.readouterr()
    assert main(["runs", str(run), "--show=name,mixed"]) == 0 and "code.schedule.name" in capsys.readouterr().out


@pytest.mark.full
def test_numbers_that_a_schedule_reads_elsewhere_change_its_curve(tmp_path, run, capsys):
    edited = project(tmp_path / "second")
    (edited.parent / "share.txt").write_text("0.5")
    forget_shapes()  # as a new process: programs are kept by the hashes of their sources
    assert train(edited, run, "--config.train.steps=6") == 2
    assert "code.schedule.name='LR 0.01 at step 0', now it is 'LR 0.005 at step 0'" in capsys.readouterr().err


@pytest.mark.full
def test_another_peak_is_no_change_of_code_and_edited_metrics_are_noted(tmp_path, run):
    edited = project(tmp_path / "second", seen=METRICS + "# looked at again\n")
    assert train(edited, run, "--config.train.steps=6", "--config.optim.peak_lr=0.02") == 0
    assert listing.read_run(run)["mixed"] == "optim.peak_lr 0.01 -> 0.02 at step 4"
    (changed,) = [event for event in records.read_events(run) if event["kind"] == "config_change"]
    assert "code.train.metrics: seen.py" in changed["text"] and changed["allowed"] == []


@pytest.mark.full
def test_a_run_of_a_version_that_did_not_record_code_goes_on_with_a_line(tmp_path, run, capsys):
    config = project(tmp_path / "second", mine=RATE + "# edited\n")
    content = manifest.read_manifest(run / "checkpoints" / "4")
    del content["facts"]["run"]["own_code"]
    forge(run / "checkpoints" / "4", content)
    record = records.read_record(run)
    del record["own_code"]
    values = records.flatten_keys(records.read_json(run / "config.json"))
    records.write_json(run / "record.json", record | {"identity": identity(values)})
    assert train(config, run, "--config.train.steps=6") == 0
    assert "mine:rate, seen:values changed since isn't known" in capsys.readouterr().err
    assert "own_code" in facts(run, 6) and "mixed" not in records.read_record(run)


@pytest.mark.full
def test_a_name_that_is_no_own_function_s_is_refused(tmp_path, run, capsys):
    assert train(project(tmp_path / "second"), run, "--allow-change=code.schedule.nam") == 2
    assert "did you mean 'code.schedule.name'?" in capsys.readouterr().err


@pytest.mark.full
def test_a_sweep_under_edited_code_is_refused_before_anything_is_written(tmp_path, capsys):
    first, edited = project(tmp_path / "first"), project(tmp_path / "second", mine=RATE + "# edited\n")
    words = [f"--workdir={tmp_path}/out", *SMALL]
    assert main(["sweep", f"--config={first}", *words]) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert main(["sweep", f"--config={edited}", *words]) == 2
    assert "trained with code.schedule.name='mine.py" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
