"""What somebody deleted, cut or edited in a run's folder: said, never passed over, and never the end of the run."""

import json
import math
import shutil

import pytest

from scalelab.__main__ import main
from scalelab.record import listing, records
from scalelab.sweep.run import run_sweep
from scalelab.train.checkpoints import manifest
from scalelab.train.single import train_single
from tests.quick import others_slow
from tests.train.checkpoints.test_manifest import forge
from tests.train.resume.test_compatibility import config, events


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of four steps with checkpoints of 2 and 4, and what `train_single` said of it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, train_single(config(schedule__name="constant"), folder)


@pytest.fixture
def run(tmp_path, finished):
    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


def edit(path):
    lines = path.read_text().splitlines(keepends=True)
    row = json.loads(lines[0])
    lines[0] = json.dumps(row | {"train_loss": row["train_loss"] - 1}) + "\n"
    path.write_text("".join(lines))


LOSSES = {
    "is missing": lambda path: path.unlink(),
    "was cut to": lambda path: path.write_text(path.read_text().splitlines(keepends=True)[0]),
    "was edited": edit,
}


@pytest.mark.full
@pytest.mark.parametrize("how", others_slow(lambda how: how != "was cut to", LOSSES))
def test_metrics_deleted_cut_or_edited_are_told_by_verify_and_by_the_run_that_goes_on(run, capsys, how):
    assert main(["checkpoint", "verify", str(run)]) == 0
    path = run / "metrics.jsonl"
    LOSSES[how](path)
    capsys.readouterr()
    assert main(["checkpoint", "verify", str(run)]) == 1
    assert f"{path} {how}" in capsys.readouterr().out
    output = []
    result = train_single(config(schedule__name="constant", train__steps=6), run, output.append)
    assert (result["status"], result["resumed_from"]) == ("done", 4)
    assert any(f"{path} {how}" in report.get("warning", "") for report in output)
    assert any(f"{path} {how}" in event["text"] for event in events(run, "warning"))


def test_lines_after_the_last_checkpoint_are_no_loss_and_a_checkpoint_copied_alone_is_whole(run, tmp_path, capsys):
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "tokens": 160, "train_loss": 1.0, "time": 1}\n{"step": 6, "tok')
    assert main(["checkpoint", "verify", str(run)]) == 0
    shutil.copytree(run / "checkpoints", tmp_path / "elsewhere" / "checkpoints")
    assert main(["checkpoint", "verify", str(tmp_path / "elsewhere")]) == 0


@pytest.mark.parametrize("status", ["running", "done"])
def test_a_finished_run_whose_metrics_are_gone_ends_as_it_did(run, finished, status):
    (run / "metrics.jsonl").unlink()
    record = records.read_json(run / "record.json")
    records.write_json(run / "record.json", record | {"status": status})  # killed between the last save and the verdict
    result = train_single(config(schedule__name="constant"), run)
    assert result["status"] == "done"
    assert math.isclose(result["val_loss"], finished[1]["val_loss"], rel_tol=1e-6)


@pytest.mark.full
def test_a_trial_deleted_from_a_sweep_is_scored_again_from_its_packs_checkpoint(tmp_path):
    trials = {name: config(train__seed=seed, sweep__pack="turn") for name, seed in (("a", 0), ("b", 1))}
    verdicts = run_sweep(tmp_path, trials)
    before = {name: listing.read_run(tmp_path / "runs" / name)["val_loss"] for name in trials}
    shutil.rmtree(tmp_path / "runs" / "b")
    for _ in range(2):
        assert run_sweep(tmp_path, trials) == verdicts
        after = {name: listing.read_run(tmp_path / "runs" / name)["val_loss"] for name in trials}
        assert after == pytest.approx(before, rel=1e-6)


def test_a_step_saved_within_a_streak_is_marked_and_the_run_that_goes_on_says_so(run, capsys):
    step = run / "checkpoints" / "4"
    content = manifest.read_manifest(step)
    assert content["health"] == {"run": "healthy"}
    forge(step, content | {"health": {"run": "suspect: the last 3 batches were skipped"}})
    assert main(["checkpoint", "list", str(run)]) == 0
    assert "run: suspect: the last 3 batches were skipped" in capsys.readouterr().out
    output = []
    train_single(config(schedule__name="constant", train__steps=6), run, output.append)
    assert any("step 4 of run is suspect" in report.get("warning", "") for report in output)


@pytest.mark.full
def test_a_damaged_record_keeps_no_trial_of_its_pack_from_going_on_and_one_bad_line_only_its_own_row(tmp_path):
    trials = {name: config(train__seed=seed, sweep__pack="turn") for name, seed in (("a", 0), ("b", 1), ("c", 2))}
    verdicts = run_sweep(tmp_path, trials)
    shutil.rmtree(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "b" / "record.json").write_text('{"status": "do')
    path = tmp_path / "runs" / "c" / "metrics.jsonl"
    path.write_text("not a line\n" + path.read_text())
    assert run_sweep(tmp_path, trials) == verdicts | {"c": "damaged"}
    assert (tmp_path / "runs" / "b" / "record.json.damaged").read_text() == '{"status": "do'
    assert any("record.json is not JSON" in event["text"] for event in events(tmp_path / "runs" / "b", "warning"))
