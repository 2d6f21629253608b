"""CPU seconds of tests by room, printed at the end of a session; a new test that is dear is marked `full`, or listed.

CPU seconds are those of the worker and of the commands that it waited for, not the clock's, so that a busy machine
changes them little. It changes them all the same (a shared core, a cold cache), a slower processor more, and whoever
comes first pays for what others share. Only one thing is red, therefore, and only in `make test`: a test function that
`budgets.toml` doesn't list, with a value that took several times LIMIT_S, however slow the machine was at that
moment. Budgets of rooms are printed and never red: `make test`'s sum is what to look at in a review.
"""

import os
import pathlib
import statistics
import time
import tomllib
from collections import Counter, defaultdict
from typing import Any

import pytest

BUDGETS = pathlib.Path(__file__).with_name("budgets.toml")
LIMIT_S = 3.0  # of CPU: a test that takes more is marked full
SLACK = 4.0  # for what comes first, for a cold cache of programs and for neighbours on the core
REFERENCE_S = 0.022  # CPU seconds of `calibrate` on the machine of budgets.toml
QUICK = "not full"  # what `make test` selects by

_spent: dict[str, Any] = {"tests": Counter(), "until": 0.0, "speeds": []}


def cpu_seconds() -> float:
    """CPU seconds of this process and of those that it waited for."""
    return sum(os.times()[:4])


def calibrate() -> float:
    """CPU seconds of a fixed piece of Python."""
    begin = time.process_time()
    sum(i * i % 7 for i in range(500_000))
    return time.process_time() - begin


def room_of(test: str) -> str:
    """tests/plan/step/test_time.py::test_a -> plan; tests on top are a room too."""
    folders = test.split("::")[0].split("/")[1:-1]
    return folders[0] if folders else "tests"


def dear_tests(seconds: dict[str, float], listed: set[str], limit_s: float) -> dict[str, float]:
    """{test: CPU seconds} of those over the limit whose function is not listed."""
    return {test: s for test, s in seconds.items() if s > limit_s and test.split("[")[0] not in listed}


def slowness(speeds: list[float]) -> float:
    """How much slower than the machine of budgets.toml this one was, by the slowest worker; at least 1."""
    return max([1.0, *(speed / REFERENCE_S for speed in speeds)])


def room_lines(seconds: dict[str, float], budgets: dict[str, float] | None) -> list[str]:
    """The table of rooms, the dearest first; with their budgets where the session ran all that they are for."""
    rooms: dict[str, float] = defaultdict(float)
    for test, s in seconds.items():
        rooms[room_of(test)] += s
    cells = [
        f"{room} {s:.0f}" + (f"/{budgets[room]:.0f}" if budgets and room in budgets else "")
        for room, s in sorted(rooms.items(), key=lambda item: -item[1])
    ]
    total = f"{sum(rooms.values()):.0f}" + (f"/{sum(budgets.values()):.0f}" if budgets else "")
    head = "CPU seconds by room" + (" / budget" if budgets else "")
    return [f"{head}: {total} in all; {', '.join(cells)}"]


def is_quick_session(config: pytest.Config) -> bool:
    """Whether the session runs what `make test` runs: all folders, by its marks."""
    return str(config.option.markexpr).startswith(QUICK) and config.args == config.getini("testpaths")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    _spent["until"] = cpu_seconds()
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    now = cpu_seconds()
    report.cpu_s, _spent["until"] = now - _spent["until"], now


def pytest_runtest_logreport(report):
    _spent["tests"][report.nodeid] += getattr(report, "cpu_s", 0.0)
    # How fast the machine is while it is as busy as it is with tests: one measure in some hundred tests.
    if report.when == "teardown" and len(_spent["tests"]) % 500 == 1:
        _spent["speeds"].append(calibrate())


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    if not is_quick_session(session.config) or hasattr(session.config, "workerinput"):
        return
    listed = set(tomllib.loads(BUDGETS.read_text())["dear"])
    slow = slowness([statistics.median(_spent["speeds"] or [REFERENCE_S])])
    _spent["dear"] = dear_tests(_spent["tests"], listed, LIMIT_S * SLACK * slow)
    if _spent["dear"] and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if not _spent["tests"]:
        return
    budgets = tomllib.loads(BUDGETS.read_text())["rooms"] if is_quick_session(config) else None
    for line in room_lines(_spent["tests"], budgets):
        terminalreporter.write_line(line)
    for test, s in _spent.get("dear", {}).items():
        line = f"{test} took {s:.1f} CPU seconds, over {LIMIT_S:.0f}: make it cheaper or mark it full"
        terminalreporter.write_line(line, red=True)
