"""Signals that ask for an end: real ones, sent by this process to itself or by the kernel where a terminal goes."""

import os
import pathlib
import pty
import signal
import subprocess
import sys
import threading

import pytest

from scalelab.signals import STOP_SIGNALS, block_stop_signals, stop_on_signals
from tests.train.runs import PATIENCE_S, hear_signals

ROOT = pathlib.Path(__file__).parents[1]
NAMES = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGXCPU")


@pytest.fixture(autouse=True)
def heard():
    """However the tests were started: under nohup, say, SIGHUP is ignored."""
    with hear_signals():
        yield


@pytest.mark.parametrize("name", NAMES)
def test_each_becomes_a_flag_and_leaves_the_handlers_as_they_were(name):
    number, before = getattr(signal, name), [signal.getsignal(n) for n in STOP_SIGNALS]
    with stop_on_signals() as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
    assert [signal.getsignal(n) for n in STOP_SIGNALS] == before


@pytest.mark.parametrize("name", NAMES[2:])
def test_a_warning_that_is_repeated_does_not_end_the_save(name):
    """The kernel repeats SIGXCPU each second, a shell SIGHUP, a scheduler any: the default would end the process."""
    with stop_on_signals() as stop:
        for _ in range(3):
            os.kill(os.getpid(), getattr(signal, name))
        assert stop()


def test_a_second_sigterm_acts_as_if_nobody_listened():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("second"))
    try:
        with stop_on_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard == []
            os.kill(os.getpid(), signal.SIGTERM)
        assert heard == ["second"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_under_nohup_a_hangup_is_nothing():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_came_while_they_were_blocked_is_noticed_on_listening():
    with block_stop_signals():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)  # libraries' threads here are not deaf
        with stop_on_signals() as stop:
            assert stop()


LEAVE = """
import pathlib, sys, time
from scalelab.signals import stop_on_signals
with stop_on_signals() as stop:
    print("listening", flush=True)
    while not stop():
        time.sleep(0.01)
    print("nobody reads this", flush=True)
    sys.stderr.write("nor this")
    pathlib.Path(sys.argv[1]).write_text("saved")
sys.exit(75)
"""


def test_a_terminal_that_goes_does_not_keep_a_run_from_saving(tmp_path):
    """Its end sends SIGHUP, and from then on writing to it is an error."""
    terminal, inner = pty.openpty()
    session = (
        f"import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{LEAVE}"  # its own, whose terminal this is
    )
    run = subprocess.Popen(
        [sys.executable, "-c", session, str(tmp_path / "saved")],
        cwd=ROOT,
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
    )
    os.close(inner)
    text = b""
    while b"listening" not in text:
        text += os.read(terminal, 100)
    os.close(terminal)
    try:
        assert run.wait(PATIENCE_S) == 75
    finally:
        run.kill()
        run.wait()
    assert (tmp_path / "saved").read_text() == "saved"
