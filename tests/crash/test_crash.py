"""The crash suite, short: one run that dies at each kind of moment, damage, a full disk, two writers, two signals."""

import functools
import os
import pathlib
import resource
import shutil
import signal
import socket
import time

import pytest

from scalelab.record import records
from tests.crash.trainer import (
    Cue,
    check_killed,
    check_refused,
    check_resumed,
    check_same,
    check_steps,
    count,
    end,
    flip,
    result,
    said,
    start,
    wait_for,
)

# (cue, steps that stand when it struck)
DEATHS = [
    (Cue(r"rename .*/4\.tmp/state\.orbax"), []),  # the first save: before Orbax's own commit
    (Cue(r"open .*/4\.tmp/\.manifest"), []),  # before the manifest
    (Cue(r"rename .*/4\.tmp$"), []),  # manifest written, not committed
    (Cue(r"mkdir .*/8\.tmp$"), [4]),  # before the second save's first operation
    (Cue(r"/4/state/", 2, "read"), [4]),  # while checking the bytes that it resumes from
    (Cue(r"rename .*/8\.tmp$"), [4]),  # the second save, not committed
    (Cue(r"rename .*/4$"), [4, 8]),  # committed, before the old step is deleted
]


@pytest.mark.slow
def test_one_run_that_dies_again_and_again_ends_as_if_nothing_had_happened(tmp_path, whole):
    folder = tmp_path / "run"
    for cue, steps in DEATHS:
        check_killed(start(folder, cue))
        assert check_steps(folder) == steps, cue
    check_same_but_for_retention(folder, whole)


def check_same_but_for_retention(folder: pathlib.Path, whole: dict) -> None:
    """Nothing was left to train, so nothing was saved and the old step stands: all else is as it should be."""
    assert end(start(folder)) == 0, said(folder)
    count("resumes")
    assert result(folder)["resumed_from"] == 8
    check_same(folder, whole | {"steps": [4, 8]})


# No file may grow beyond 20 kB: as on a full disk.
FULL = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))


@pytest.fixture
def two_steps(tmp_path):
    """A run that died right after its second save: steps 4 and 8 stand, four steps of metrics are at stake."""
    folder = tmp_path / "run"
    check_killed(start(folder, Cue(r"rename .*/4$")))
    return folder


def test_a_damaged_step_is_refused_by_name_or_passed_over_when_asked_and_logged(tmp_path, two_steps, whole):
    broken = tmp_path / "broken"
    shutil.copytree(two_steps, broken)
    file = max((broken / "checkpoints" / "8" / "state").rglob("*"), key=lambda p: p.is_file() and p.stat().st_size)
    flip(file, 12345)
    check_refused(broken, 1, str(file), "is damaged", "--fallback")
    assert end(start(broken, None, "--fallback")) == 0, said(broken)
    assert result(broken)["resumed_from"] == 4
    check_same(broken, whole)
    (event,) = [e for e in records.read_events(broken) if e["kind"] == "fallback"]
    assert str(file) in event["text"] and event["step"] == 4
    assert (broken / "checkpoints" / "8.damaged" / "manifest.json").exists()


def test_a_full_disk_ends_the_run_with_an_error_and_the_last_good_step(tmp_path, whole):
    folder = tmp_path / "run"
    process = start(folder, Cue(r"mkdir .*/8\.tmp$", act=FULL))
    assert end(process) == 1
    # tensorstore may add lines of its own
    (line,) = [line for line in said(folder).splitlines() if line.startswith("scalelab: ")]
    assert "File too large" in line and line.endswith("the last good one is step 4")
    assert check_steps(folder) == [4]
    check_resumed(folder, whole)


@pytest.mark.full
def test_a_disk_that_hangs_ends_the_run_with_its_stacks_and_nothing_is_lost(tmp_path, whole):
    folder = tmp_path / "run"
    hang = Cue(r"open .*/metrics\.jsonl$", 4, act=functools.partial(time.sleep, 1e6))
    assert end(start(folder, hang, **{"train.stall_s": 5})) == 1
    (line,) = [line for line in said(folder).splitlines() if line.startswith("scalelab: ")]
    assert "no new step for" in line and f"the stacks of all threads are in {folder / 'stacks.txt'}" in line
    assert " in append" in (folder / "stacks.txt").read_text()
    assert (folder / ".lock").read_text() == ""
    check_resumed(folder, whole)


@pytest.mark.slow
def test_a_second_sigterm_ends_it_at_once_and_nothing_is_lost(tmp_path, whole):
    folder = tmp_path / "run"
    process = start(folder)
    wait_for(lambda: len(records.read_metrics(folder)) > 0, process)
    os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGTERM)
    assert end(process) in (-signal.SIGTERM, 75, 0)
    count("kills")
    check_resumed(folder, whole)


@pytest.mark.full
def test_of_two_writers_the_second_is_refused_and_the_first_unharmed(tmp_path, whole):
    folder, other = tmp_path / "run", tmp_path / "other"
    first = start(folder)
    wait_for(lambda: (folder / ".lock").exists() and (folder / ".lock").read_text().endswith("\n"), first)
    os.kill(first.pid, signal.SIGSTOP)  # so that it surely lives when the second comes
    other.symlink_to(folder)  # the same folder under another name
    assert end(start(other)) == 2
    assert f"is held by host {socket.gethostname()}, process {first.pid}" in said(other)
    count("refusals")
    os.kill(first.pid, signal.SIGCONT)
    assert end(first) == 0
    check_same(folder, whole)
