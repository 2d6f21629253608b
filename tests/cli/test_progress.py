"""Progress in logs and on terminals: elapsed time and time left, whose loss it is, where a run went on, what stays."""

import re

import pytest

from scalelab.cli.lines import Pace
from scalelab.cli.progress import PoolProgress, RunProgress, WorkProgress
from scalelab.record import records
from tests.cli.test_lines import Clock


def lines(capsys):
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err).splitlines()


@pytest.fixture
def clock():
    return Clock()


def run_progress(clock, title="run", steps=200):
    progress = RunProgress(title, steps)
    progress.pace.now, progress.last_print = clock, clock.seconds
    progress.pace.started = clock.seconds
    return progress


def test_a_log_has_elapsed_time_and_time_left_and_ends_with_the_last_loss(clock, capsys):
    """Seen: a batch job's log said neither, and a finished bar took its losses with it."""
    with run_progress(clock) as progress:
        for step, loss in ((20, 3.0), (40, 2.5), (60, 2.4)):
            clock.seconds += 15
            progress.update({"step": step, "train_loss": loss, "tokens_per_s": 1234.5})
        progress.update({"step": 60, "val_loss": 2.45})
        clock.seconds += 5
        progress.update({"step": 80, "train_loss": 2.3, "tokens_per_s": 1234.5})
    assert lines(capsys) == [
        "run  step 20/200  loss 3.000  1,234 tokens/s  0:15",
        "run  step 40/200  loss 2.500  1,234 tokens/s  0:30  2:00 left",
        "run  step 60/200  loss 2.400  1,234 tokens/s  0:45  1:45 left",
        "run  step 80/200  loss 2.300  val 2.450  1,234 tokens/s  0:50  1:10 left",
    ]


def test_a_packs_line_says_whose_loss_it_is(clock, capsys):
    """Seen: `8 trials: … loss 3.268` was the first trial's."""
    with run_progress(clock, "8 trials") as progress:
        progress.update({"step": 20, "train_loss": 3.0, "trials": 7, "lost": 1, "tokens_per_s": 99.0})
    assert lines(capsys) == ["8 trials  step 20/200  median loss 3.000 of 7, 1 lost  99 tokens/s in all  0:00"]


@pytest.mark.parametrize("width", [40, 60])
def test_on_a_narrow_terminal_the_last_line_stays_whole(clock, capsys, monkeypatch, width):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    with run_progress(clock, "a-run-with-a-long-name", 123_456) as progress:
        assert progress.console.is_terminal and progress.console.width == width
        progress.update({"step": 12_345, "train_loss": 2.5, "tokens_per_s": 180_123.0})
    *_, last = lines(capsys)
    assert len(last) <= width and "step 12345/123456  loss 2.500" in last


def test_a_run_that_never_stepped_leaves_no_line(clock, capsys):
    with run_progress(clock) as progress:
        progress.update({"note": "attention: plain"})
    assert lines(capsys) == ["attention: plain"]


def write_trial(folder, name, step, status="running", loss=2.5):
    place = folder / "runs" / name
    place.mkdir(parents=True, exist_ok=True)
    records.write_json(place / "record.json", {"status": status})
    records.append_json_lines(place / "metrics.jsonl", [{"step": step, "train_loss": loss, "tokens_per_s": 900.0}])


@pytest.fixture
def pool(tmp_path, clock):
    """Two packs of two trials each, in a log; the pool's clock is turned by hand."""
    packs = {"p": ["a", "b"], "q": ["c", "d"]}
    records.write_json(tmp_path / "sweep.json", {"trials": dict.fromkeys("abcd", 100), "packs": packs})
    progress = PoolProgress(tmp_path, dict.fromkeys("abcd", 100))
    progress.pace.now, progress.last_print, progress.pace.started = clock, clock.seconds, clock.seconds
    return progress


def poll(pool, clock, capsys):
    clock.seconds += 10
    pool.update(list("abcd"))
    return lines(capsys)


def test_the_first_time_left_waits_until_every_worker_has_stepped(pool, clock, capsys, tmp_path):
    """Seen: `about 4000 s left` while one of two workers still compiled."""
    assert poll(pool, clock, capsys)[0] == "0 of 4 runs ended  0% of all steps  0:10"
    for name in "ab":
        write_trial(tmp_path, name, 40)
    headline, *packs = poll(pool, clock, capsys)
    assert headline == "0 of 4 runs ended  20% of all steps  0:20"
    assert packs == [
        "  a and 1 more  step 40/100  median loss 2.500 of 2  900 tokens/s in all",
        "  c and 1 more  step 0/100  compiling",
    ]
    for name in "abcd":
        write_trial(tmp_path, name, 50)
    assert poll(pool, clock, capsys)[0] == "0 of 4 runs ended  50% of all steps  0:30"
    for name in "abcd":
        write_trial(tmp_path, name, 75)
    assert poll(pool, clock, capsys)[0] == "0 of 4 runs ended  75% of all steps  0:40  0:10 left"


def test_a_resumed_trial_says_where_and_its_old_steps_are_no_pace(pool, clock, capsys, tmp_path):
    for name in "abcd":
        write_trial(tmp_path, name, 80)
        records.write_event(tmp_path / "runs" / name, "resume", 80)
    shown = poll(pool, clock, capsys)
    assert shown[:2] == ["a and 1 more: resumed at step 80", "c and 1 more: resumed at step 80"]
    assert shown[2] == "0 of 4 runs ended  80% of all steps  0:10"
    assert "resumed" not in " ".join(poll(pool, clock, capsys))
    for name in "abcd":
        write_trial(tmp_path, name, 90)
    assert "left" not in poll(pool, clock, capsys)[0]  # the pace begins here
    for name in "abcd":
        write_trial(tmp_path, name, 95)
    assert poll(pool, clock, capsys)[0].endswith("0:10 left")


def test_the_pools_last_lines_stay(pool, clock, capsys, tmp_path):
    with pool:
        poll(pool, clock, capsys)
        for name in "abcd":
            write_trial(tmp_path, name, 100, "done" if name < "c" else "diverged", 9.0 if name > "b" else 2.0)
    assert lines(capsys)[0] == "4 of 4 runs ended  100% of all steps  0:10"


def test_other_work_has_its_time_left_in_a_log_too(clock, capsys):
    with WorkProgress() as progress:
        progress.work["web"] = 0, 100, Pace(clock)
        progress.last_print = clock.seconds
        progress.update("web", 0, 100)
        clock.seconds += 15
        progress.update("web", 25, 100)
    assert lines(capsys) == ["web  25/100  0:15  0:45 left"]
