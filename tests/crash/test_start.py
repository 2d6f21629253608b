"""A stop signal before the first step: while a run claims its folder, reads its data, compiles."""

import functools
import pathlib
import signal

import pytest

from scalelab.record import records
from tests.crash.trainer import Cue, check_resumed, check_steps, count, end, said, start, wait_for

# What the process is about to do when it gets the signal.
MOMENTS = {
    "the lock": r"open .*/run/\.lock$",
    "the config": r"open .*/run/\.config\.json",
    "the record": r"open .*/run/\.record\.json",
    "the logbook": r"open .*/run/events\.jsonl$",
    "the first save": r"mkdir .*/run/checkpoints$",
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_sigterm_while_a_run_starts_saves_or_leaves_nothing_half_done(tmp_path, whole, moment):
    folder = tmp_path / "run"
    cue = Cue(MOMENTS[moment], act=functools.partial(signal.raise_signal, signal.SIGTERM))
    assert end(start(folder, cue)) == 75, said(folder)
    assert "Traceback" not in said(folder)
    count("kills")
    assert check_steps(folder) and (folder / ".lock").read_text() == ""
    assert records.read_record(folder)["status"] == "stopped"
    check_resumed(folder, whole)


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.0, 0.3, 1.0])
def test_sigterm_at_any_time_of_a_start(tmp_path, whole, delay_s):
    """Before it listens, the signal ends it as it ends any program."""
    folder = tmp_path / "run"
    process = start(folder)
    wait_for(lambda: pathlib.Path(f"{folder}.log").exists(), process)
    process.join(delay_s)
    process.terminate()
    assert end(process) in (75, -signal.SIGTERM, 0), said(folder)
    assert "Traceback" not in said(folder)
    check_resumed(folder, whole)
