"""Who may write in a folder: one living process, whatever host, job or file system it is on."""

import errno
import fcntl
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from scalelab.errors import BadInput
from scalelab.evaluate import evaluations
from scalelab.record import lock, owners, records
from tests.train.runs import PATIENCE_S

REPO = pathlib.Path(__file__).resolve().parents[1]

HOLD = """
import sys, time
from scalelab.record import lock
lock.HEARTBEAT_S = float(sys.argv[2])
with lock.hold_folder(sys.argv[1]) as warning:
    print("held", warning, flush=True)
    time.sleep(3600)
"""


def hold(folder: pathlib.Path, beat_s: float = 60) -> subprocess.Popen:
    """Another process that holds the folder; returns once it does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(beat_s)],
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdout.readline().startswith("held")
    return process


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        assert pipe
        pipe.close()


def test_a_second_process_is_refused_and_told_who_holds_it(tmp_path):
    other = hold(tmp_path)
    try:
        with pytest.raises(BadInput) as caught, lock.hold_folder(tmp_path):
            pytest.fail("two processes held one folder")
        message = str(caught.value)
        assert (
            str(tmp_path) in message and f"process {other.pid}" in message and f"host {os.uname().nodename}" in message
        )
        assert re.search(r"started \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", message) and "\n" not in message
    finally:
        kill(other)


def test_the_lock_of_a_killed_process_is_taken_over_with_a_warning(tmp_path):
    other = hold(tmp_path)
    kill(other)
    with lock.hold_folder(tmp_path) as warning:
        assert warning and f"process {other.pid}" in warning and "took over" in warning
        assert f"process {os.getpid()}" in (tmp_path / ".lock").read_text()
    with lock.hold_folder(tmp_path) as warning:
        assert warning is None  # released in order: nobody died


def test_a_failure_inside_releases_the_lock(tmp_path):
    with pytest.raises(RuntimeError), lock.hold_folder(tmp_path):
        raise RuntimeError
    with lock.hold_folder(tmp_path) as warning:
        assert warning is None


ELSEWHERE = "host elsewhere, process 1, started 2026-01-01 00:00:00"


def left_by(folder: pathlib.Path, text: str, silent_s: float = 0.0) -> pathlib.Path:
    """The lock that a process on another host left, whose last heartbeat is so long ago."""
    path = folder / ".lock"
    path.write_text(f"{text}\n")
    os.utime(path, (time.time() - silent_s,) * 2)
    return path


def test_a_fresh_lock_of_another_host_is_refused_with_its_age_and_the_way_out(tmp_path):
    left_by(tmp_path, f"{ELSEWHERE}, beating", 30)
    with pytest.raises(BadInput) as caught, lock.hold_folder(tmp_path):
        pytest.fail("took the lock of a host that lives")
    assert re.search(r"not released by host elsewhere.* 3\d s ago .*--take-over", str(caught.value))
    with lock.hold_folder(tmp_path, take_over=True) as warning:
        assert "host elsewhere" in warning and "has to make way" in warning
        assert (tmp_path / ".lock").read_text().startswith(f"host {socket.gethostname()}, process {os.getpid()}")
    assert (tmp_path / ".lock").read_text() == ""


def test_a_host_without_a_heartbeat_is_gone_unless_it_never_had_one(tmp_path):
    left_by(tmp_path, f"{ELSEWHERE}, beating", lock.LEASE_S + 30)
    with lock.hold_folder(tmp_path) as warning:
        assert re.search(r"gave no sign of life for 15\d s", warning)
    left_by(tmp_path, ELSEWHERE, 1e6)  # by a version without heartbeats
    with pytest.raises(BadInput, match="--take-over"), lock.hold_folder(tmp_path):
        pytest.fail("took the lock of a host that can't be seen")


@pytest.mark.parametrize(
    ("job", "restart", "passes"), [("77", "1", True), ("77", "", False), ("78", "1", False), ("", "", False)]
)
def test_a_requeued_job_takes_over_from_its_former_life_at_once(tmp_path, monkeypatch, job, restart, passes):
    left_by(tmp_path, f"{ELSEWHERE}, job 77 restart 0, beating")
    for name, value in (("JOB_ID", job), ("RESTART_COUNT", restart)):
        monkeypatch.setenv(f"SLURM_{name}", value)
    if passes:
        with lock.hold_folder(tmp_path) as warning:
            assert "this job before it was requeued" in warning
            assert ", job 77 restart 1, beating" in (tmp_path / ".lock").read_text()
        return
    with pytest.raises(BadInput, match="not released by host elsewhere"), lock.hold_folder(tmp_path):
        pytest.fail("another job's lock was taken")


def test_a_lock_that_the_file_server_keeps_for_a_dead_node_is_no_obstacle(tmp_path):
    """As NFS 3 does. The process that keeps it here stands for the server; where it lives after all, it ends."""
    other = hold(tmp_path, beat_s=0.1)
    try:
        text = (tmp_path / ".lock").read_text()
        left_by(tmp_path, text.replace(socket.gethostname(), "elsewhere"))  # it is still locked
        with pytest.raises(BadInput, match="not released by host elsewhere"), lock.hold_folder(tmp_path):
            pytest.fail("took a lock that beats")
        with lock.hold_folder(tmp_path, take_over=True) as warning:
            assert "has to make way" in warning
            _, err = other.communicate(timeout=PATIENCE_S)
            assert other.returncode == 1 and "was taken over by host" in err and "this process ends" in err
            with pytest.raises(BadInput, match=f"process {os.getpid()}"), lock.hold_folder(tmp_path):
                pytest.fail("held twice")
    finally:
        kill(other)


def test_the_heartbeat_renews_the_time_of_the_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.02)
    with lock.hold_folder(tmp_path):
        os.utime(tmp_path / ".lock", (0, 0))
        until = time.monotonic() + PATIENCE_S
        while (tmp_path / ".lock").stat().st_mtime == 0:
            assert time.monotonic() < until
            time.sleep(0.01)


@pytest.fixture(params=["ENOSYS", "ENOLCK", "ENOTSUP"])
def no_flock(request, monkeypatch):
    """A disk that knows no flock, as Lustre without -o flock and some FUSE mounts."""

    def refuse(*_):
        raise OSError(getattr(errno, request.param), "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_without_flock_the_file_itself_is_the_lock(tmp_path, no_flock):
    path = tmp_path / ".lock"
    with lock.hold_folder(tmp_path) as warning:
        assert warning is None and f"process {os.getpid()}" in path.read_text()
        with pytest.raises(BadInput, match=f"is held by .*process {os.getpid()}"), lock.hold_folder(tmp_path):
            pytest.fail("held twice")
    assert not path.exists()
    gone = subprocess.Popen(["true"])
    gone.wait()
    path.write_text(f"host {socket.gethostname()}, process {gone.pid}, started 2026-01-01 00:00:00, beating\n")
    with lock.hold_folder(tmp_path) as warning:
        assert f"process {gone.pid}" in warning and "died without releasing it" in warning
    for process, silent_s in ((os.getpid(), 0), (os.getppid(), lock.LEASE_S + 30)):  # numbers that are others' by now
        left_by(tmp_path, f"host {socket.gethostname()}, process {process}, started then, beating", silent_s)
        with lock.hold_folder(tmp_path) as warning:
            assert "died without releasing it" in warning
    left_by(tmp_path, f"host {socket.gethostname()}, process {os.getppid()}, started then, beating")
    with pytest.raises(BadInput, match=f"held by .*process {os.getppid()}"), lock.hold_folder(tmp_path):
        pytest.fail("took the lock of one that lives")
    path.unlink()
    path.touch()  # somebody is about to write his name
    with pytest.raises(BadInput, match="held by another process"), lock.hold_folder(tmp_path):
        pytest.fail("held twice")
    os.utime(path, (0, 0))
    with lock.hold_folder(tmp_path) as warning:
        assert warning is None
    left_by(tmp_path, f"{ELSEWHERE}, beating", lock.LEASE_S + 30)
    with lock.hold_folder(tmp_path) as warning:
        assert "gave no sign of life" in warning
    assert list(tmp_path.iterdir()) == []
    row = {"step": 1, "weights": "trained", "set": "a", "fingerprint": "f", "kind": "loss", "metrics": {"loss": 1.0}}
    evaluations.write_evaluations(tmp_path, [row])
    assert records.read_evaluations(tmp_path) == [row]


@pytest.mark.skipif(sys.platform != "linux", reason="read off /proc")
def test_a_killed_process_that_nobody_waited_for_does_not_live():
    """As in a container whose first process waits for nobody: the lease of a store asks for the number."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    assert process.stdout and process.stdout.readline() and owners.is_process_alive(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not owners.is_process_alive(process.pid)
    process.wait()
    process.stdout.close()
