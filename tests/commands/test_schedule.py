"""`scalelab schedule`: its numbers are those that a run logs, the table, the figure, and mistakes."""

import csv
import json

import numpy as np
import pytest

from scalelab.__main__ import main
from scalelab.optim import schedules
from scalelab.record import records
from scalelab.report.figures import scheduleplot
from scalelab.train.single import train_single
from tests.train.resume.test_compatibility import SMALL, config

CHANGES = {
    "schedule.name": "wsd", "schedule.decay_shape": "sqrt", "schedule.decay_tokens": 6 * 32, "train.steps": 12,
    "schedule.beta1_steps": 5, "schedule.wd_shape": "lr2",
}  # fmt: skip
GIVEN = [f"--config.{key}={value}" for key, value in (SMALL | CHANGES).items()]


def asked(capsys, *more, code=0):
    assert main(["schedule", "--config=configs/tiny.py", *GIVEN, *more]) == code
    return capsys.readouterr()


@pytest.mark.full
def test_its_numbers_are_those_of_the_run(tmp_path, capsys):
    output = json.loads(asked(capsys, "--json", f"--show-steps={','.join(map(str, range(12)))}").out)
    train_single(config(**{key.replace(".", "__"): value for key, value in CHANGES.items()}), tmp_path / "run")
    lines = [line for line in records.read_metrics(tmp_path / "run") if "lr" in line]
    assert [line["step"] - 1 for line in lines] == [row["step"] for row in output["rows"]] == [*range(12)]
    shown = [row["lr"] for row in output["rows"]]
    np.testing.assert_allclose(shown, [line["lr"] for line in lines], rtol=8 * 2**-24)  # a few operations in fp32
    assert (output["name"], output["warmup_steps"], output["decay_steps"], output["steps"]) == ("wsd", 2, 6, 12)
    assert [row["tokens"] for row in output["rows"]] == [32 * step for step in range(12)]
    assert {row["batch_tokens"] for row in output["rows"]} == {32}


def test_the_table_says_what_was_chosen_and_where_it_bends(capsys):
    first, head, *lines = asked(capsys).out.splitlines()
    assert first == (
        "wsd over 12 steps of 32 tokens: warm-up 2 steps, sqrt decay 6 steps (tokens 192) from step 6 on, to 0.1 of "
        "the peak"
    )
    assert head.split() == ["step", "tokens", "lr", "beta1", "weight_decay", "batch_tokens", "seq_len"]
    steps = [int(line.split()[0]) for line in lines]
    assert {0, 1, 6, 11} <= set(steps) == set(sorted(steps))
    assert lines[steps.index(6)].split() == ["6", "192", "0.01", "0.9", "0.001", "32", "16"]
    untold = asked(capsys, "--config.schedule.warmup_steps=none", "--config.schedule.name=cosine").out.splitlines()[0]
    assert untold == "cosine over 12 steps of 32 tokens: warm-up 1 steps (default)"


def test_the_figure_holds_the_curves_and_marks_the_steps_asked_for(tmp_path, capsys):
    output = json.loads(asked(capsys, "--json", "--show-steps=3,7", f"--plot={tmp_path / 'new' / 'x.pdf'}").out)
    assert output["figures"] == [str(tmp_path / "new" / "x.pdf"), str(tmp_path / "new" / "x.csv")]
    assert (tmp_path / "new" / "x.pdf").read_bytes().startswith(b"%PDF")
    with open(tmp_path / "new" / "x.csv") as file:
        rows = list(csv.DictReader(file))
    wanted = schedules.schedule_curves(config(**{k.replace(".", "__"): v for k, v in CHANGES.items()}), range(12))
    np.testing.assert_allclose([float(row["lr"]) for row in rows], wanted["lr"], rtol=1e-6)
    rows = [{key: float(value) for key, value in row.items()} for row in rows]
    for ax, (key, _) in zip(scheduleplot.plot_schedules(rows, [3, 7]).axes, scheduleplot.PANELS, strict=True):
        line, dots = ax.lines
        np.testing.assert_array_equal(line.get_ydata(), [row[key] for row in rows])
        assert list(dots.get_xdata()) == [3, 7]
    asked(capsys, f"--plot={tmp_path / 'y.png'}")
    assert (tmp_path / "y.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--show-steps=0,12", "the run has 12 steps, so its last is 11, and 12 is not one of them"),
        ("--show-steps=1,,3", "'' is not a step"),
        ("--show-steps=-1", "'-1' is not a step"),
        ("--plot=x.svgg", "one of .pdf, .png"),
        ("--config.schedule.warmup_tokens=320", "schedule.warmup_steps=2 (2 steps) are given at once"),
    ],
)
def test_mistakes_are_one_line(capsys, given, message):
    err = asked(capsys, given, code=2).err
    assert message in err and len(err.strip().splitlines()) == 1


def test_a_growing_batch_in_tokens_and_what_was_seen(capsys, tmp_path):
    ramp = ["train.global_batch=8", "train.accumulate=4", "schedule.batch_start=2", "schedule.batch_warmup_tokens=288"]
    more = [f"--config.{key}" for key in ramp]
    output = json.loads(asked(capsys, *more, "--json", f"--show-steps={','.join(map(str, range(12)))}").out)
    assert [row["batch_tokens"] for row in output["rows"]] == [32, 32, 32, 64, 64, 96, *[128] * 6]
    assert [row["tokens"] for row in output["rows"]] == [0, 32, 64, 96, 160, 224, *range(320, 1088, 128)]
    first, _, *lines = asked(capsys, *more, f"--plot={tmp_path / 'x.png'}").out.splitlines()
    assert first.startswith(
        "wsd over 12 steps of 128 tokens (32 at first, all from step 6 on, 320 tokens in): warm-up 2"
    )
    assert {3, 6} <= {int(line.split()[0]) for line in lines}
