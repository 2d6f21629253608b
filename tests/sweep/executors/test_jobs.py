"""Packs as jobs: when one is started again, what its end means, and what is said of a job that left no end."""

import json
import os
import re
import time

import pytest

from scalelab.record import records
from scalelab.sweep.executors import element, jobs, sweep_jobs
from scalelab.sweep.executors.queue import QueuedJob

PACK, SUBMISSION = "abc", "17-f"


def start(step):
    return {"time": 1.0, "submission": SUBMISSION, "job": "7_0", "host": "n1", "step": step}


def end(step, code, why=""):
    return start(step) | {"code": code, "why": why}


def write_lines(folder, *lines):
    place = folder / "packs" / PACK
    place.mkdir(parents=True, exist_ok=True)
    records.append_json_lines(place / jobs.STARTS_FILE, list(lines))


@pytest.mark.parametrize("steps, now, again", [
    ([], 0, True), ([0] * 5, 0, True), ([0] * 6, 0, False), ([0] * 5 + [20], 20, True),
    ([0] * 6, 20, True), ([0, 20, 20, 20, 20, 20], 20, True), ([0, 20, 20, 20, 20, 20, 20], 20, False),
])  # fmt: skip
def test_a_pack_is_started_again_while_it_gains_steps_and_five_times_without(steps, now, again):
    lines = [line for step in steps for line in (start(step), end(step, 75, "hangs; requeued"))]
    why = element.refuse_start(lines, now)
    assert bool(why) is not again
    if why:
        assert "6 of them without a new step" in why and "the last time: hangs; requeued" in why


RUNNING = QueuedJob("7_0", "RUNNING", "None", SUBMISSION)


@pytest.mark.parametrize("lines, job, code", [
    ([start(0)], RUNNING, None),
    ([start(0), end(9, 0)], None, 0),
    ([start(0), end(9, 0)], RUNNING, 0),  # the queue lags
    ([start(0), end(9, 75, "stopped by a signal; requeued")], RUNNING, None),
    ([start(0), end(9, 75, "stopped by a signal; cancelled")], None, 75),
    ([start(0), end(0, 2, "no such file")], None, 2),
    ([start(0) | {"code": 3}], None, 3),  # edited: without a reason
    ([end(9, 0) | {"job": "6_0"}], RUNNING, None),  # the end of an earlier submission
    ([], RUNNING, None),
])  # fmt: skip
def test_an_end_counts_unless_a_job_goes_on(tmp_path, lines, job, code):
    write_lines(tmp_path, *lines)
    log = tmp_path / "packs" / PACK / "log.txt"
    log.write_text("INFO: the library bids farewell\n")
    assert sweep_jobs.settle(tmp_path, PACK, job) == code
    last = {2: "no such file", 3: "exit code 3"}.get(code, "INFO: the library bids farewell")
    assert log.read_text().splitlines()[-1] == last


@pytest.mark.parametrize("lines, output, words", [
    ([], "", "ended before it wrote into"),
    ([], "slurmstepd: error: execve(): No such file", "is that shared between nodes?: slurmstepd: error: execve()"),
    ([start(3)], "", "Slurm job 7_0 on n1 ended without a word"),
    ([start(3)], "slurmstepd: error: Exceeded job memory limit", "ended without a word.*: slurmstepd: error: Exceeded"),
    ([start(3), end(5, 75, "a signal; requeued")], "", "Slurm job 7_0 on n1 ended without a word"),
])  # fmt: skip
def test_a_job_that_left_no_end_fails_its_pack_with_what_is_known(tmp_path, lines, output, words):
    write_lines(tmp_path, *lines)
    place = element.submissions_folder(tmp_path) / "jobs"
    place.mkdir(parents=True)
    (place / "7_0_log.out").write_text(f"starting\n{output}\n")
    assert sweep_jobs.settle(tmp_path, PACK, None) == 1
    log = (tmp_path / "packs" / PACK / "log.txt").read_text()
    assert log.count("\n") == 1
    assert re.search(words.replace("()", r"\(\)").replace("?", r"\?"), log), log


@pytest.fixture
def submitted(tmp_path):
    """A sweep's folder with a pack of one trial, as it is submitted."""
    from scalelab import config as config_lib
    from scalelab.configs import tiny

    jobs.write_job(tmp_path, PACK, {"t": config_lib.resolve(tiny.get_config())}, None, (), False, None)
    element.submissions_folder(tmp_path).mkdir()
    (element.submissions_folder(tmp_path) / f"{SUBMISSION}.json").write_text(json.dumps({"packs": {}, "time": 0}))
    return tmp_path


def test_a_folder_that_is_not_shared_is_found_by_the_token_of_the_submission(submitted, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with pytest.raises(SystemExit, match="is not the folder that was submitted: is it shared between nodes"):
        element.train_element(elsewhere, PACK, SUBMISSION)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("hours", [0, 1, -1])
def test_a_node_whose_clock_is_off_is_named_in_the_trial_s_events(submitted, monkeypatch, hours):
    """The file server's clock is moved, not the node's: to a process of this machine that is the same."""
    monkeypatch.setattr(jobs, "train_job", lambda *_: 0)
    append = records.append_json_lines

    def append_there(path, lines):
        append(path, lines)
        os.utime(path, (time.time(), time.time() - 3600 * hours))

    monkeypatch.setattr(records, "append_json_lines", append_there)
    assert element.train_element(submitted, PACK, SUBMISSION) == 0
    run = submitted / "runs" / "t"
    texts = [event["text"] for event in records.read_events(run)] if run.exists() else []
    assert [text.partition(" is ")[2] for text in texts] == (
        [f"{3600 * hours:+.0f} s off the file server's"] if hours else []
    )
    assert [line["code"] for line in jobs.read_starts(submitted, PACK) if "code" in line] == [0]
