"""A run that stands still: its stacks are written and it ends, whatever holds its main thread."""

import threading
import time

import pytest

from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.parallel.pulse import Pulse
from scalelab.record import records
from scalelab.train.single import train_single
from tests.sweep.test_pack import TINY
from tests.train.runs import PATIENCE_S


def test_no_step_for_too_long_is_noticed_with_the_stacks_of_all_threads(tmp_path):
    """What hangs here is the main thread itself, in a callback; in place of the exit it is let go."""
    go_on, reasons = threading.Event(), []

    def hang(facts):
        if facts.get("step") == 10:
            assert go_on.wait(PATIENCE_S)

    def stalled(why):
        reasons.append(why)
        go_on.set()

    config = config_lib.resolve(override(tiny.get_config(), TINY | {"train.stall_s": 5}))
    result = train_single(config, tmp_path, hang, pulse=Pulse(stalled))
    assert result["status"] == "done" and len(reasons) == 1
    assert "no new step for" in reasons[0] and str(tmp_path / "stacks.txt") in reasons[0]
    stacks = (tmp_path / "stacks.txt").read_text()
    assert " in hang" in stacks and "most recent call first" in stacks and stacks.count("Thread 0x") >= 2
    assert [event["kind"] for event in records.read_events(tmp_path)].count("stalled") == 1


def watched(pulse, folder, seconds):
    """Whether a pulse that is left alone for so long calls it standing still, at a limit of 0.2 s."""
    reasons = []
    pulse.stalled = reasons.append
    with pulse.watched(0.2, folder, lambda why: None):
        until = time.monotonic() + seconds
        while time.monotonic() < until and not reasons:
            time.sleep(0.01)
    return bool(reasons)


@pytest.mark.parametrize("phase", ["start", "compile", "eval", "save"])
def test_what_may_take_its_time_may(tmp_path, phase):
    pulse = Pulse()
    pulse.enter(phase, 3)
    assert not watched(pulse, tmp_path, 1.0)
    pulse.enter("train", 3)
    assert watched(pulse, tmp_path, PATIENCE_S)


def test_slow_dispatches_and_a_peer_that_is_waited_for_are_not_stalls(tmp_path):
    pulse = Pulse()
    assert pulse.limit(300) == 300
    pulse.steps_at_once = 20
    assert pulse.limit(300) == 6000  # nothing is timed yet
    pulse.dispatches.extend([1, 40, 1000])
    assert pulse.limit(300) == 400
    pulse.dispatches.clear()
    pulse.steps_at_once, pulse.excused = 1, lambda: True
    pulse.enter("train", 3)
    assert not watched(pulse, tmp_path, 1.0)
