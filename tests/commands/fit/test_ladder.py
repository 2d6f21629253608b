"""`scalelab fit --accuracy` end to end: a table of checkpoints, a published table, its refusals."""

import csv
import json

import numpy as np
import pytest

from scalelab.__main__ import main
from scalelab.api.laws.ladder import fit_accuracy
from tests.laws.use.test_ladder import measure
from tests.tables import table_path


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """20 runs of six checkpoints each."""
    path, random = tmp_path_factory.mktemp("ladder") / "ladder.csv", np.random.default_rng(2)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "params", "tokens", "task_loss", "acc"])
        for N in np.geomspace(1e7, 1.5e9, 5):
            for ratio in (20, 40, 80, 200):
                D = N * ratio * np.linspace(0.75, 1.0, 6)
                loss, accuracy = measure(np.full(6, N), D, random)
                writer.writerows((f"{N:.0f}-{ratio}", N, *row) for row in zip(D, loss, accuracy, strict=True))
    return str(path)


COLUMNS = "--columns=loss=task_loss,accuracy=acc"


@pytest.mark.full
def test_a_table_of_checkpoints_predicts_a_larger_run(capsys, table):
    options = ["--accuracy", COLUMNS, "--bootstrap=40", "--target-values=N=7e9,D=1e12", "--holdout=2"]
    assert main(["fit", table, *options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["n_runs"] == 20 and result["n_rows"] == 120 and len(result["holdout"]) == 2
    assert result["prediction"]["accuracy"][0] == pytest.approx(0.80, abs=0.04)
    assert result["prediction"]["accuracy"][1] < 0.8 < result["prediction"]["accuracy"][2]
    assert np.mean(result["checkpoint_sd"]["loss"]) == pytest.approx(0.005, rel=0.3)
    fitted = fit_accuracy(table, {"loss": "task_loss", "accuracy": "acc"}, bootstrap=40)
    assert fitted.ladder.params() == pytest.approx(result["params"])
    assert main(["fit", table, *options]) == 0
    text = capsys.readouterr().out
    assert "run: 20 runs; the last row of each counts" in text and "which holds both steps' errors" in text
    assert "held out: accuracies of" in text and "tables simulated with both" in text


@pytest.mark.full
def test_published_errors_of_tasks_are_predicted_for_the_largest_runs(capsys, tmp_path):
    """Gadre et al. 2024, RedPajama, 17 tasks: 1.4B at M = 640 and 6.9B at M = 20 from the smaller runs."""
    with table_path("gadre/runs.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["dataset_name"] == "rpj"]
    path = tmp_path / "rpj.csv"
    with path.open("w", newline="") as file:
        lines = [(r["name"], r["N"], r["D"], r["loss_c4_val"], 1 - float(r["err_avg_subset"])) for r in rows]
        csv.writer(file).writerows([("name", "N", "D", "loss", "accuracy"), *lines])
    assert main(["fit", str(path), "--accuracy", "--holdout=2", "--bootstrap=20", "--json"]) == 0
    for held in json.loads(capsys.readouterr().out)["holdout"]:
        assert abs(held["loss"][0] / held["measured"][0] - 1) < 0.03
        assert abs(held["accuracy"][0] - held["measured"][1]) < 0.03


MISTAKES = [
    (["--target-values=N=7e9"], "--target-values=N=7e9,D=4e12"),
    (["--target-values=N=7e9,D=-1"], "positive numbers"),
    (["--tournament"], "--tournament has no effect with --accuracy"),
    (["--law=kaplan"], "--law has no effect with --accuracy"),
    (["--last-checkpoints=1"], "5 is usual"),
    (["--holdout=40"], "1 to 19 can be held out"),
    (["--hold=flor=0.25"], "did you mean 'floor'"),
    (["--cluster=ran"], "did you mean 'run'"),
]


@pytest.mark.full
@pytest.mark.parametrize(("options", "line"), MISTAKES, ids=lambda value: str(value)[:30])
def test_mistakes_are_one_line(capsys, table, options, line):
    assert main(["fit", table, "--accuracy", COLUMNS, "--bootstrap=20", *options]) == 2
    assert line in capsys.readouterr().err


@pytest.mark.full
def test_without_accuracy_its_options_are_refused(capsys, table):
    assert main(["fit", table, "--last-checkpoints=4", COLUMNS]) == 2
    assert "--last-checkpoints has no effect without --accuracy" in capsys.readouterr().err
    assert main(["fit", table, "--accuracy", "--columns=loss=task_loss"]) == 2
    assert "accuracy" in capsys.readouterr().err
