"""Every verb on logs that say little: no tokens, N or seeds, several runs in a file; an answer, or one clear line."""

import csv
import math

import pytest

from scalelab.__main__ import main
from tests.foreign.test_trackers import make_database

ROWS = [(step, 2 + 6 * math.exp(-step / 30)) for step in range(1, 121)]
BARE = "".join(f"step: {step}  loss: {loss:.4f}  grad_norm: 1.5  tps: 3,386\n" for step, loss in ROWS)


def call(capsys, *words):
    capsys.readouterr()
    code = main([*map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err.splitlines()


@pytest.fixture
def bare(tmp_path):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "log.txt").write_text(BARE)
    return tmp_path / "bare"


@pytest.fixture
def unseeded(tmp_path):
    """A table of two runs whose seeds it does not have."""
    lines = [f"{run},{step},{loss},{loss + 0.1}" for run in "ab" for step, loss in ROWS]
    (tmp_path / "two.csv").write_text("run,step,loss,val_loss\n" + "\n".join(lines))
    return tmp_path / "two.csv"


def test_a_log_of_steps_and_losses_alone_is_forecast(bare, capsys):
    code, out, _ = call(capsys, "watch", bare, "--once", "--schedule=cosine:warmup=10,end=0.1,steps=200")
    assert code == 0 and "after 80 more steps (unknown time)" in out


def test_runs_that_tell_no_seed_are_compared(unseeded, capsys):
    code, out, _ = call(capsys, "compare", unseeded, unseeded)
    assert code == 0 and "B - A = +0.000000 nats/token" in out and "noise floor: unknown" in out


@pytest.mark.full
def test_curves_without_tokens_are_drawn_over_steps(bare, unseeded, tmp_path, capsys):
    assert call(capsys, "report", bare, f"--output={tmp_path / 'one' / 'page.html'}")[0] == 0
    with open(tmp_path / "one" / "page_figures" / "loss.csv") as file:
        drawn = list(csv.DictReader(file))
    assert [(int(row["step"]), float(row["train_loss"])) for row in drawn] == [(s, round(x, 4)) for s, x in ROWS]
    assert "tokens" not in drawn[0]
    assert call(capsys, "report", unseeded, f"--output={tmp_path / 'two' / 'page.html'}")[0] == 0
    page = (tmp_path / "two" / "page.html").read_text()
    assert "Training loss over steps" in page and "over compute" not in page


def test_a_file_that_is_no_table_is_read_as_runs_by_fit_and_ablate(tmp_path, capsys):
    database = make_database(tmp_path / "mlflow.db", "mlflow")
    code, _, told = call(capsys, "fit", database)
    assert code == 2 and told[-1] == "scalelab: none of 2 runs can be fitted: 1 no N, 1 diverged"
    code, _, told = call(capsys, "ablate", database)
    assert code == 2 and "the runs differ in optim.peak_lr: --columns=side=KEY" in told[-1]
    (tmp_path / "table.xlsx").write_bytes(b"PK\3\4")
    code, _, told = call(capsys, "fit", tmp_path / "table.xlsx")
    assert code == 2 and ".csv" in told[-1]


def test_a_log_of_steps_that_is_fitted_as_a_table_is_told_the_way(bare, unseeded, capsys):
    code, _, told = call(capsys, "fit", unseeded)
    assert code == 2 and told[-1].endswith("; if a row is a step of a run: `scalelab import run two.csv --workdir=D`")
    code, _, told = call(capsys, "ablate", bare)
    assert code == 2 and "there is one run, and a change is judged by runs with it and without it" in told[-1]
    code, _, told = call(capsys, "tune", bare)
    assert code == 2 and "none of 1 runs logged a validation loss" in told[-1] and "--columns=val_loss=NAME" in told[-1]
    code, out, _ = call(capsys, "tune", bare, "--columns=val_loss=loss")
    assert code == 0 and out.endswith("not known: there is one setting with a result\n")


def test_one_of_several_runs_is_asked_for_by_diagnose_and_can_be_named(unseeded, capsys):
    code, _, told = call(capsys, "diagnose", unseeded)
    assert code == 2 and "is not a run folder but a folder of runs; one is judged at a time: name it, e.g. " in told[-1]
    code, out, _ = call(capsys, "diagnose", told[-1].rpartition("e.g. ")[2])
    assert code == 0 and out.startswith("no cause found in what was judged")
