"""`scalelab train --back-to`: what replay shows, to the bit; what is left behind; what is refused."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from scalelab import api
from scalelab.__main__ import guarded, main
from scalelab.commands import train
from scalelab.record import listing, records
from scalelab.train.checkpoints import manifest
from scalelab.train.checkpoints.whole_run import verify_run
from scalelab.train.resume import by_hand, rewind
from scalelab.train.single import train_single
from tests.train.resume.test_compatibility import SMALL, config
from tests.train.runs import ROOT

STEPS = 40
COSINE = {"train.steps": STEPS, "train.steps_per_dispatch": 7, "checkpoint.every_steps": 10, "checkpoint.keep_last": 9,
          "eval.every_steps": STEPS, "optim.clip_norm": 2.0, "schedule.name": "cosine"}  # fmt: skip
CHANGES = ["--lr-factor=.7", "--clip-norm=.03", "--skip-batches=23..25", "--reset=moments"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of a cosine to its end, with checkpoints of steps 10 to 40."""
    folder = tmp_path_factory.mktemp("back") / "run"
    overrides = [f"--config.{key}={value}" for key, value in (SMALL | COSINE).items()]
    assert main(["train", "--config=tiny", f"--workdir={folder}", *overrides]) == 0
    return folder


@pytest.fixture
def run(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def logged(folder, key="train_loss"):
    return {line["step"]: line[key] for line in records.read_metrics(folder) if key in line}


def replayed(run, window, what_if):
    """The losses of a what-if, from the checkpoint on."""
    return api.replay(f"{run}@{window}", what_if)["curves"]


@pytest.mark.full
def test_the_incident_of_13b_in_small_is_the_arm_of_its_replay_to_the_bit(run):
    """Source 003: at 45,000 back to 44,000, LR x .7, clip 2 -> 1; here from step 40 back to 20 of a cosine."""
    before = logged(run)
    curves = replayed(run, "21..30", "lr*=.7; clip=1")
    assert main(["train", f"--workdir={run}", "--back-to=20", "--lr-factor=.7", "--clip-norm=1"]) == 0
    after = logged(run)
    assert [after[step] for step in range(21, STEPS + 1)] == curves["lr*=.7 clip=1"]
    assert [before[step] for step in range(21, STEPS + 1)] == curves["original"]
    assert after[STEPS] != before[STEPS] and list(after) == list(range(1, STEPS + 1))


@pytest.mark.full
def test_all_changes_at_once_are_those_of_a_what_if(run):
    curves = replayed(run, "21..30", "lr*=.7; clip=.03; skip=24..26; moments=reset")
    lr = logged(run, "lr")
    assert main(["train", f"--workdir={run}", "--back-to=20", *CHANGES]) == 0
    (name,) = set(curves) - {"original"}
    assert [logged(run)[step] for step in range(21, STEPS + 1)] == curves[name]
    # One meaning of a reset: the LR warms up again over 150 steps, in replay, here and in the guard's third rewind.
    assert logged(run, "lr")[21] == pytest.approx(lr[21] * 0.7 / 150) and logged(run, "lr")[30] < lr[30] * 0.7 / 14
    entry = records.read_record(run)["rewinds"]["1"]
    assert (entry["jump"], entry["batches"], entry["reset"], entry["clip_norm"]) == ([23, 3], [23, 25], True, 0.03)


@pytest.mark.full
def test_what_is_left_behind_is_kept_and_named_and_the_record_counts_it(run, capsys):
    whole = {name: (run / name).read_bytes() for name in ("metrics.jsonl", "record.json", "config.json")}
    digests = {step: manifest.read_manifest(run / "checkpoints" / str(step))["sha256"] for step in (30, 40)}
    assert main(["train", f"--workdir={run}", "--back-to=20", "--lr-factor=.5"]) == 0
    aside = run / "set_aside" / "1"
    assert whole == {name: (aside / name).read_bytes() for name in whole}
    assert {step: manifest.read_manifest(aside / "checkpoints" / str(step))["sha256"] for step in (30, 40)} == digests
    assert manifest.find_step_problems(aside / "checkpoints" / "40") == []
    (event,) = [event for event in records.read_events(run) if event["kind"] == "back_to"]
    assert (event["from"], event["to"], event["steps"]) == (40, 20, [30, 40]) and str(aside) in event["text"]
    record = records.read_record(run)
    assert record["status"] == "done" and listing.read_run(run)["rewinds"] == 1
    tokens = 2 * 16  # a step's
    assert record["tokens"] == STEPS * tokens  # what the weights have seen; computed were 20 steps more
    assert record["flops"]["exact"] == record["flops_per_token"]["exact"] * (STEPS + 20) * tokens
    assert not [line for lines in verify_run(run).values() for line in lines]
    assert main(["replay", f"{aside}@31..32", "--after=2"]) in (0, 1)  # it reads as a run
    capsys.readouterr()
    losses = logged(run)
    assert main(["train", f"--workdir={run}", "--back-to=20", "--lr-factor=.5"]) == 0  # the same command again
    assert "is not done again" in capsys.readouterr().err and logged(run) == losses
    assert main(["train", f"--workdir={run}", "--back-to=20", "--lr-factor=.25"]) == 0  # of the saved step, not of .5
    lr = logged(run, "lr")
    assert lr[30] == pytest.approx(0.25 * logged(aside, "lr")[30]) and (run / "set_aside" / "2").is_dir()


def test_without_a_change_it_trains_the_same_bits_again(run):
    before = logged(run)
    assert main(["train", "--config=tiny", f"--workdir={run}", "--back-to=30",
                 *[f"--config.{key}={value}" for key, value in (SMALL | COSINE).items()]]) == 0  # fmt: skip
    assert logged(run) == before


REFUSED = {
    "beyond": (["--back-to=50"], "it has [10, 20, 30, 40]; nearest: --back-to=40"),
    "before": (["--back-to=5", "--lr-factor=.5"], "it has [10, 20, 30, 40]; nearest: --back-to=10"),
    "its end": (["--back-to=40"], "no step of"),
    "no number": (["--back-to=x"], "is not a whole number"),
    "batches before it": (["--back-to=20", "--skip-batches=3..5"], "nearest: 20..22"),
    "an empty stretch": (["--back-to=20", "--skip-batches=25..24"], "is empty"),
    "no clip": (["--back-to=20", "--clip-norm=0"], "--clip-norm=0 must be above 0 and at most 1e+09; nearest: 1"),
    "another model": (["--back-to=20", "--config.model.d_model=16"], "model.d_model=8, now it is 16"),
    "a branch": (["--back-to=20", "--branch-from=x"], "give one of them"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_be_is_one_line_and_nothing_changes(case, whole, capsys):
    options, line = REFUSED[case]
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.name != ".lock"}
    code = guarded("train", train.main, [f"--workdir={whole}", *options])
    error = capsys.readouterr().err
    assert code == 2 and line in error, error
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.name != ".lock"} == before


def test_a_damaged_step_and_other_folders_are_refused(run, tmp_path, capsys):
    (file, *_) = sorted(path for path in (run / "checkpoints" / "20" / "state").rglob("*") if path.stat().st_size > 99)
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    for folder, line in ((run, "it also has [10, 30, 40]"), (tmp_path / "none", "is not a run folder")):
        assert main(["train", f"--workdir={folder}", "--back-to=20"]) == 2
        assert line in capsys.readouterr().err
    assert not (run / "guard.json").exists()
    off = [f"--config.{key}={value}" for key, value in (SMALL | COSINE | {"guard.policy": "off"}).items()]
    assert main(["train", "--config=tiny", f"--workdir={run}", "--back-to=30", "--lr-factor=.5", *off]) == 2
    assert "guard.policy='off'" in capsys.readouterr().err and not (run / "guard.json").exists()


POINTS = {"before files are moved": (by_hand, "settle"), "after": (rewind, "pending_decision"),
          "after restoring": (rewind, "follow_decision")}  # fmt: skip


def killed_at(point, folder):
    """Go back in this process until it is killed at `point`, once the decision is written."""
    place, name = POINTS[point]
    work = getattr(place, name)

    def killing(*arguments):
        if rewind.read_decisions(by_hand.pathlib.Path(folder)):
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*arguments)

    setattr(place, name, killing)
    train.main([f"--workdir={folder}", "--back-to=20", *CHANGES])


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_a_plain_train_goes_on_to_the_same_bits(point, run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    train_single_line = [f"--workdir={other}", "--back-to=20", *CHANGES]
    assert train.main(train_single_line) == 0
    code = f"from {__name__} import killed_at; killed_at({point!r}, {str(run)!r})"
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    assert process.returncode == -signal.SIGKILL, process.stderr[-2000:]
    changed = {key.replace(".", "__"): value for key, value in COSINE.items()}
    assert train_single(config(**changed), run)["status"] == "done"
    assert logged(run) == logged(other)
    assert sorted(path.name for path in (run / "set_aside" / "1" / "checkpoints").iterdir()) == ["30", "40"]


def test_a_run_that_diverged_goes_back_and_on(run):
    record = records.read_record(run)
    records.write_json(run / "record.json", record | {"status": "diverged"})
    assert main(["train", f"--workdir={run}", "--back-to=30", "--lr-factor=.5"]) == 0
    assert records.read_record(run)["status"] == "done"
