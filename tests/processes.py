"""Processes that a test starts end with it: one that is left would be reported by whichever test runs when it is
collected.
"""

import contextlib
import subprocess
import weakref
from collections.abc import Iterator

import pytest

STARTED: weakref.WeakSet[subprocess.Popen] = weakref.WeakSet()  # those that something still refers to
SHARED: weakref.WeakSet[subprocess.Popen] = weakref.WeakSet()  # servers of a session, which their fixture ends
_initialise = subprocess.Popen.__init__


def watch_processes() -> None:
    """Note each `subprocess.Popen` from now on in STARTED."""

    def initialise(process: subprocess.Popen, *arguments, **options) -> None:
        STARTED.add(process)
        _initialise(process, *arguments, **options)

    subprocess.Popen.__init__ = initialise  # type: ignore[method-assign]


@contextlib.contextmanager
def none_left() -> Iterator[None]:
    """End what was started within and not waited for, close its pipes, and fail naming it."""
    before = set(STARTED)
    yield
    left = [process for process in STARTED if process not in before | set(SHARED) and _is_open(process)]
    commands = [str(process.args)[:200] for process in left]
    for process in left:
        process.kill()
        process.communicate()
    if commands:
        pytest.fail(f"left running or with open pipes: {'; '.join(commands)}", pytrace=False)


def _is_open(process: subprocess.Popen) -> bool:
    if not hasattr(process, "stdin") or process.args is None:  # it could not be started
        return False
    pipes = [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe is not None]
    return process.returncode is None or any(not pipe.closed for pipe in pipes)
