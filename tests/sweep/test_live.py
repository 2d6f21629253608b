"""A sweep followed from its files: pace, time left, speed, silence, reasons, and what the terminal shows of them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from scalelab.cli import follow
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.sweep import live
from tests.quick import one_in
from tests.report import synthetic
from tests.train.runs import PATIENCE_S, hear_signals

STEPS, BEHIND_S = 1000, 5.0


def write_trial(folder, name, lines, status="running", every_s=2.0, ago_s=BEHIND_S, tokens_per_s=500.0):
    """A trial with `lines` of 10 steps each, a line every `every_s` seconds, the last one `ago_s` seconds ago."""
    place = folder / "runs" / name
    synthetic.write_run(place, lines=3, status=status)
    now = time.time() - ago_s
    rows = [
        {
            "step": 10 * (i + 1),
            "train_loss": 5.0 - i,
            "tokens_per_s": tokens_per_s,
            "time": now - every_s * (lines - 1 - i),
        }
        for i in range(lines)
    ]
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    start = {"time": now - every_s * lines, "step": 0, "kind": "start", "text": ""}
    (place / "events.jsonl").write_text(json.dumps(start) + "\n")
    return place


@pytest.fixture
def sweep(tmp_path):
    """Two trials that train together, one alone, one each diverged, failed, done and waiting."""
    write_trial(tmp_path, "a", 4)
    write_trial(tmp_path, "b", 4)
    write_trial(tmp_path, "slow", 3, every_s=5.0, tokens_per_s=70.0)
    records.write_event(write_trial(tmp_path, "div", 2, "diverged"), "diverged", 20, "loss 21 is 9 above the median")
    records.write_event(write_trial(tmp_path, "dead", 2), "failed", None, "killed by signal 9")
    write_trial(tmp_path, "done", 2, "done")
    names = ["a", "b", "slow", "div", "dead", "done", "later"]
    packs = {"p": ["a", "b"], "q": names[2:]}
    records.write_json(tmp_path / "sweep.json", {"trials": dict.fromkeys(names, STEPS), "packs": packs})
    return tmp_path


def test_pace_speed_and_time_left_are_those_of_the_lines(sweep):
    view = live.read_live(sweep)
    a, _, slow, *_ = view.trials
    assert a.steps_per_s == pytest.approx(5.0) and a.left_s == pytest.approx((STEPS - 40) / 5.0)
    assert slow.steps_per_s == pytest.approx(2.0) and slow.losses == (5.0, 4.0, 3.0)
    assert view.tokens_per_s == 500 + 70  # a pack logs its speed as a whole
    # 7 trials; three have ended; 40, 40, 30 and 0 steps of the others are done, and 12 steps a second are taken.
    assert view.share == pytest.approx((3 * STEPS + 110) / (7 * STEPS))
    assert view.left_s == pytest.approx((4 * STEPS - 110) / 12.0)
    assert not view.has_ended


def test_what_was_lost_says_why(sweep):
    lines = follow.describe_view(live.read_live(sweep))
    assert lines[0].startswith("7 trials: 3 running") and "44% of all steps" in lines[0]
    assert "  div  diverged at step 20: loss 21 is 9 above the median" in lines
    assert "  dead  failed at step 20: killed by signal 9" in lines


def test_a_pause_before_a_resume_is_not_the_pace(tmp_path):
    place = write_trial(tmp_path, "a", 4)
    lines = records.read_json_lines(place / "metrics.jsonl")
    lines[0]["time"] -= 3600  # before the pause
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    resume = {"time": lines[1]["time"] - 1, "step": 10, "kind": "resume", "text": ""}
    with (place / "events.jsonl").open("a") as file:
        file.write(json.dumps(resume) + "\n")
    (trial,) = live.read_live(place).trials
    assert trial.steps_per_s == pytest.approx(5.0)


@pytest.mark.parametrize(("every_s", "ago_s", "silent"), [(2.0, 30.0, False), (2.0, 90.0, True), (20.0, 90.0, False)])
def test_a_run_is_silent_after_long_by_its_own_pace(tmp_path, every_s, ago_s, silent):
    (trial,) = live.read_live(write_trial(tmp_path, "a", 4, every_s=every_s, ago_s=ago_s)).trials
    assert bool(trial.silent_s) == silent and (trial.left_s is None) == silent
    (_, line) = follow.describe_view(live.read_live(tmp_path))
    assert ("silent for 1:3" in line) == silent and ("left" in line) != silent


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(BadInput, match="holds no run"):
        live.read_live(tmp_path)


@pytest.mark.parametrize(
    ("values", "columns", "curve"),
    [
        ([], 5, ""),
        ([1.0], 5, "▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([7, 7, 0, 0], 2, "█▁"),
        ([0.0, float("nan"), 7.0, float("inf")], 4, "▁×█×"),
        ([3.0, 3.0, 3.0], 3, "▁▁▁"),
    ],
)
def test_a_curve_goes_from_the_lowest_to_the_highest_block(values, columns, curve):
    assert follow.draw_curve(values, columns) == curve
    assert follow.draw_curve(values, columns, ascii_only=True).isascii()


@pytest.mark.parametrize("width", one_in(3, [40, 80, 200]))
@pytest.mark.parametrize("height", [4, 6, 30])
def test_lines_fit_the_terminal(sweep, width, height):
    for number in range(12):
        write_trial(sweep, f"more{number}", 3)
    names = [path.name for path in (sweep / "runs").iterdir()]
    records.write_json(sweep / "sweep.json", {"trials": dict.fromkeys(names, STEPS)})
    lines = follow.describe_view(live.read_live(sweep), width, height)
    assert len(lines) <= height and max(map(len, lines)) <= max(width, 60)
    if height == 6:
        assert any("more running" in line for line in lines)


def test_following_ends_with_the_trials(tmp_path, capsys):
    place = write_trial(tmp_path, "a", 4)

    def look():
        seen = live.read_live(tmp_path)
        if looks:
            synthetic.finish_run(place)  # after the second look, however long it took
        looks.append(seen)
        return seen

    looks = []
    follow.follow_view(look, every_s=0.1)
    blocks = capsys.readouterr().out.split("\n\n")
    assert len(blocks) > 1 and blocks[0].startswith("1 trials: 1 running") and "1 done  100%" in blocks[-1]


def test_interrupting_the_following_is_no_failure(tmp_path):
    place = write_trial(tmp_path, "a", 4)
    command = [sys.executable, "-m", "scalelab", "sweep", "--status", "--follow", f"--workdir={place}"]
    with hear_signals():
        unbuffered = os.environ | {"PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=unbuffered)
    assert process.stdout.readline().startswith("1 trials: 1 running")
    process.send_signal(signal.SIGINT)
    process.stdout.read(), process.stdout.close()
    assert process.wait(timeout=PATIENCE_S) == 0
