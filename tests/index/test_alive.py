"""Runs that say they are running: what the commands call them, by their locks' owners and heartbeats."""

import datetime
import errno
import fcntl
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from scalelab.__main__ import main
from scalelab.index import alive
from scalelab.record import lock, records
from scalelab.sweep import live
from tests.diagnose.watch import families
from tests.report import synthetic

ROOT = pathlib.Path(__file__).parents[2]
HOLD = """
import sys, time
from scalelab.record import lock
with lock.hold_folder(sys.argv[1]):
    print(flush=True)
    time.sleep(999)
"""
HERE, ELSEWHERE = socket.gethostname(), "elsewhere"
SINCE = r"dead since \d{4}-\d\d-\d\d \d\d:\d\d"


@pytest.fixture
def hold():
    """Hold a folder in another process, which ends with the test."""
    processes = []

    def start(folder: pathlib.Path) -> subprocess.Popen:
        command = [sys.executable, "-c", HOLD, str(folder)]
        processes.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE))
        assert processes[-1].stdout.readline()
        return processes[-1]

    yield start
    for process in processes:
        kill(process)


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    process.stdout.close()


def leave_lock(folder: pathlib.Path, owner: str, silent_s: float) -> float:
    """A lock with this text whose last heartbeat is so long ago; the time of that."""
    (folder / ".lock").write_text(owner)
    beat = time.time() - silent_s
    os.utime(folder / ".lock", (beat, beat))
    return beat


def owner(host: str = ELSEWHERE, process: int = 1, beating: str = ", beating") -> str:
    return f"host {host}, process {process}, started 2026-01-01 00:00:00{beating}\n"


def read_row(capsys, folder: pathlib.Path) -> dict:
    assert main(["runs", str(folder), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    return row


@pytest.fixture
def run(tmp_path) -> pathlib.Path:
    synthetic.write_run(tmp_path / "run", lines=6, status="running")
    return tmp_path / "run"


def test_a_run_lives_while_its_process_does_also_suspended_and_is_dead_since_its_last_beat(run, hold, capsys):
    process = hold(run)
    row = read_row(capsys, run)
    assert row["status"] == "running" and row["dead_since"] is None
    process.send_signal(signal.SIGSTOP)
    beat = int(time.time() - 1000)
    os.utime(run / ".lock", (beat, beat))
    assert read_row(capsys, run)["status"] == "running"
    process.kill()  # and nobody waits for it yet
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert read_row(capsys, run)["status"] == "dead"
    kill(process)
    row = read_row(capsys, run)
    assert row["status"] == "dead" and datetime.datetime.fromisoformat(row["dead_since"]).timestamp() == beat
    assert main(["runs", str(run)]) == 0
    assert re.search(SINCE, capsys.readouterr().out)


@pytest.mark.parametrize(
    ("text", "silent_s", "status"),
    [
        (owner(), 30, "running"),
        (owner(), lock.LEASE_S + 30, "dead"),
        (owner(beating=""), 1e6, "running"),  # of a version without heartbeats: nobody can tell
        (owner(HERE, 2**22 - 1), 5, "dead"),  # a number that no process has
        (owner(HERE, os.getpid()), 5, "dead"),  # a number that another process has now
        ("", 0, "dead"),  # released after an error of its own
    ],
    ids=["beating", "silent", "older", "no process", "another process", "released"],
)
def test_the_lock_s_owner_and_beat_decide(run, capsys, text, silent_s, status):
    leave_lock(run, text, silent_s)
    assert read_row(capsys, run)["status"] == status


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
def test_another_host_is_judged_by_the_file_server_s_clock(run, capsys, monkeypatch, ahead_s):
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + ahead_s)
    for silent_s, status in ((30, "running"), (lock.LEASE_S + 30, "dead")):
        leave_lock(run, owner(), silent_s + ahead_s)
        alive._seconds_ahead.cache_clear()
        assert read_row(capsys, run)["status"] == status
    alive._seconds_ahead.cache_clear()


@pytest.mark.parametrize("status", ["done", "stopped", "diverged"])
def test_a_run_that_has_ended_or_was_stopped_is_not_dead(run, capsys, status):
    synthetic.write_run(run, lines=6, status=status)
    leave_lock(run, owner(), 1e6)
    assert read_row(capsys, run)["status"] == status


def test_who_asks_whether_an_owner_lives_keeps_nobody_out(run, monkeypatch):
    """A reader shares the kernel's lock for a moment, in which the next process comes."""
    leave_lock(run, owner(HERE, 2**22 - 1), 5)
    with open(run / ".lock") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda seconds: fcntl.flock(reader, fcntl.LOCK_UN))
        with lock.hold_folder(run):
            assert alive.dead_since(run) is None


@pytest.fixture
def sweep(tmp_path) -> pathlib.Path:
    """Two trials that train together, and one that waits."""
    for name in ("a", "b"):
        synthetic.write_run(tmp_path / "runs" / name, lines=6, status="running")
        record = records.read_json(tmp_path / "runs" / name / "record.json")
        pack = {"pack": {"checkpoints": "../../packs/p/checkpoints", "trial": name}}
        records.write_json(tmp_path / "runs" / name / "record.json", record | pack)
    (tmp_path / "packs" / "p").mkdir(parents=True)
    content = {"trials": dict.fromkeys("abc", 5000), "packs": {"p": ["a", "b"], "q": ["c"]}}
    records.write_json(tmp_path / "sweep.json", content)
    return tmp_path


def test_trials_live_with_their_pack_s_process_and_a_dead_sweep_is_followed_to_its_end(sweep, hold, capsys):
    parent, worker = hold(sweep), hold(sweep / "packs" / "p")
    status = ["sweep", f"--workdir={sweep}", "--status"]
    assert main([*status, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["trials"]
    assert [(row["status"], row["dead_since"]) for row in rows] == [("running", None)] * 2 + [("waiting", None)]
    kill(worker)
    assert live.read_live(sweep).trials[0].row["status"] == "dead"
    assert not live.read_live(sweep).has_ended  # the parent starts its pack again
    kill(parent)
    assert main(status) == 0
    out, err = capsys.readouterr()
    assert len(re.findall(SINCE, out)) == 2 and "3 trials: 2 dead, 1 waiting" in err
    assert main([*status, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["trials"]
    assert [row["status"] for row in rows] == ["dead", "dead", "waiting"] and rows[0]["dead_since"]
    assert live.read_live(sweep).has_ended
    (sweep / "slurm").mkdir()
    assert not live.read_live(sweep).has_ended  # jobs may go on without the command: Slurm doesn't answer here
    (sweep / "slurm").rmdir()
    assert main(["tune", f"--workdir={sweep}", "--status"]) == 0  # of a study, too
    assert len(re.findall(SINCE, capsys.readouterr().out)) == 2
    assert main([*status, "--follow"]) == 0  # nobody is left whom it could wait for
    assert len(re.findall(SINCE, capsys.readouterr().out)) == 2


def test_watch_says_that_a_run_is_dead_and_does_not_wait_for_it(tmp_path, capsys):
    families.write_family(tmp_path)
    run = tmp_path / "runs" / "late"
    families.write_member(run, 20_000, 2_400, 2, until=0.8)
    leave_lock(run, owner(), 300)
    assert main(["watch", str(run), "--json"]) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out.splitlines()[-1])["forecasts"]
    assert row["dead_since"] and re.search(rf"late is {SINCE}: the command that trained it resumes it", err)
    leave_lock(run, owner(), 0)
    assert main(["watch", str(run), "--once", "--json"]) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out.splitlines()[-1])["forecasts"]
    assert row["dead_since"] is None and "dead" not in err


@pytest.mark.parametrize(
    ("process", "silent_s", "status"),
    [("mine", 5, "running"), ("mine", lock.LEASE_S + 30, "dead"), ("nobody's", 5, "dead")],
)
def test_where_the_kernel_keeps_no_locks_the_number_and_the_beat_decide(
    run, capsys, monkeypatch, process, silent_s, status
):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks")

    leave_lock(run, owner(HERE, os.getpid() if process == "mine" else 2**22 - 1), silent_s)
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert read_row(capsys, run)["status"] == status
