"""Trackers' databases and folders, as their own libraries wrote them (files/README.md says how)."""

import json
import math
import sqlite3

import pyarrow
import pytest
from pyarrow import parquet

from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.foreign.find import find_runs, read_found
from tests.foreign.test_doors import read_all
from tests.foreign.test_readers import FILES, converted, series


def make_database(path, name):
    """A database with the tables that the library wrote, from their dump."""
    with sqlite3.connect(path) as connection:
        connection.executescript((FILES / "databases" / f"{name}.sql").read_text())
    connection.close()
    return path


def losses(lr, count=20):
    return pytest.approx({10 * i: 4 + 3 * math.exp(-20 * lr * i) for i in range(count)})


def test_mlflows_database_is_its_runs_and_deleted_ones_are_named(tmp_path, capsys):
    make_database(tmp_path / "mlflow.db", "mlflow")
    found = {each.name: each for each in find_runs(tmp_path)}
    assert list(found) == ["lr-0.003", "lr-0.01", "gone", "empty"]
    for lr in (0.003, 0.01):
        (run,) = read_found(found[f"lr-{lr}"])
        values = run.columns["train/loss"].logged()
        assert values[:20] == pytest.approx(list(losses(lr).expected.values())) and run.state == "finished"
        assert run.config["learning_rate"] == lr and run.columns["eval_loss"].present.sum() == 2
    assert math.isnan(values[20])  # mlflow.log_metric(…, nan)
    for name, words in (("gone", "was deleted"), ("empty", "no metric")):
        with pytest.raises(BadInput, match=words):
            read_found(found[name])
    assert main(["runs", str(tmp_path / "mlflow.db"), "--json=-"]) == 0
    rows = {row["name"]: row["status"] for row in json.loads(capsys.readouterr().out)}
    assert rows == {"lr-0.003": "done", "lr-0.01": "diverged"}


def test_an_infinite_metric_of_mlflow_is_infinite_and_experiments_name_their_runs(tmp_path):
    place = make_database(tmp_path / "x.sqlite", "mlflow")
    with sqlite3.connect(place) as connection:
        connection.execute("UPDATE metrics SET value = -1.7976931348623157e308 WHERE key = 'eval_loss' AND step = 190")
        connection.execute("UPDATE runs SET experiment_id = 0 WHERE name = 'lr-0.01'")
    connection.close()
    found = {each.name: each for each in find_runs(place)}
    assert list(found)[:2] == ["ladder/lr-0.003", "Default/lr-0.01"]
    assert read_found(found["Default/lr-0.01"])[0].columns["eval_loss"].logged().tolist()[-1] == -math.inf


def test_trackios_database_is_its_runs_also_while_it_is_written(tmp_path):
    place = make_database(tmp_path / "ladder.db", "trackio")
    connection = sqlite3.connect(place)  # as a run that goes on: its last rows stand in the write-ahead log
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(
        "UPDATE metrics SET metrics = '{\"train/loss\": \"NaN\"}' WHERE step = 190 AND run_id = 'id0.01'"
    )
    connection.commit()
    before = sorted(path.name for path in tmp_path.iterdir())
    runs = read_all(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before and (tmp_path / "ladder.db-wal").stat().st_size
    connection.close()
    assert series(runs["lr-0.003"].training, "train_loss") == losses(0.003)
    assert runs["lr-0.003"].record["tokens"] == 4096 * 190 and runs["lr-0.003"].config["train"]["seed"] == 0
    assert runs["lr-0.01"].record["status"] == "diverged"


def test_another_database_a_damaged_one_and_one_of_views_are_one_line(tmp_path):
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("CREATE TABLE metrics (run_name, step)")
    with pytest.raises(BadInput, match="not a log of a run"):
        find_runs(tmp_path / "a.db")
    with sqlite3.connect(tmp_path / "b.db") as connection:  # a view is a program: it could go on for ever
        connection.execute("CREATE TABLE configs (run_name, config)")
        connection.execute(
            "CREATE VIEW metrics AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n)"
            " SELECT i AS id, i AS run_name, i AS step, i AS metrics FROM n"
        )
    with pytest.raises(BadInput, match="not a log of a run"):
        find_runs(tmp_path / "b.db")
    whole = make_database(tmp_path / "c.db", "mlflow").read_bytes()
    (tmp_path / "c.db").write_bytes(whole[:100] + bytes(len(whole) - 100))
    with pytest.raises(BadInput, match="SQLite") as refusal:
        find_runs(tmp_path / "c.db")
    assert "\n" not in str(refusal.value)
    (tmp_path / "points.csv").write_text("step,loss\n1,2.5\n2,2.25\n")  # beside a damaged database: it is read
    assert list(read_all_that_can(tmp_path)) == ["points"]


def read_all_that_can(source):
    runs = {}
    for each in find_runs(source):
        try:
            runs[each.name] = read_found(each)
        except BadInput:
            continue
    return runs


def test_dvclives_folder_is_one_run():
    run = converted(FILES / "dvclive")
    assert series(run.training, "train_loss") == pytest.approx({i: 4 + 3 * math.exp(-i / 5) for i in range(20)})
    assert series(run.evaluations, "val_loss") == pytest.approx({i: 4.1 + 3 * math.exp(-i / 5) for i in (9, 19)})
    assert run.config["optim"]["peak_lr"] == 3e-3 and run.config["train"]["seed"] == 1


def test_clearmls_offline_session_is_one_run():
    run = converted(FILES / "clearml", train_loss="loss/train", val_loss="loss/val")
    assert series(run.training, "train_loss") == pytest.approx({i: 4 + 3 * math.exp(-i / 5) for i in range(20)})
    assert series(run.evaluations, "val_loss") == pytest.approx({i: 4.1 + 3 * math.exp(-i / 5) for i in (9, 19)})
    assert run.config["optim"]["peak_lr"] == 3e-3 and run.record["source"]["labels"]["run_name"] == "lr3"


def test_a_history_of_keras_is_lists_by_name(tmp_path):
    (tmp_path / "history.json").write_text('{"loss": [4.0, 3.5, 3.25], "val_loss": [4.5, 4.25, 4.125]}')
    run = converted(tmp_path / "history.json")
    assert list(series(run.evaluations, "val_loss").values()) == [4.5, 4.25, 4.125]
    (tmp_path / "history.json").write_text('{"loss": [4.0, 3.5], "val_loss": [4.5]}')
    with pytest.raises(BadInput, match="lists of one length"):
        converted(tmp_path / "history.json")


@pytest.mark.parametrize(("run", "name", "value"), [
    ("run.hash", "metric.name", "value"), (None, "metricName", "metricValue"),
    ("run_id", "attribute_path", "float_value"),
])  # fmt: skip
def test_a_line_for_each_value_becomes_a_row_for_each_step(tmp_path, run, name, value):
    rows = [
        ({run: side} if run else {}) | {name: metric, value: base / step, "step": step, "timestamp": 1.0}
        for metric, base in (("train/loss", 8.0), ("val_loss", 9.0))
        for side in ("a", "b")[: 2 if run else 1]
        for step in (4, 2, 1)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "points.parquet")
    runs = read_all(tmp_path / "points.parquet")
    assert len(runs) == (2 if run else 1)
    for each in runs.values():
        assert series(each.training, "train_loss") == {1: 8.0, 2: 4.0, 4: 2.0}
        assert series(each.evaluations, "val_loss") == {1: 9.0, 2: 4.5, 4: 2.25}
        assert any("names them" in note and "timestamp" in note for note in each.notes)


def test_a_repository_of_aim_is_one_line_with_the_way_out(tmp_path):
    (tmp_path / ".aim" / "meta").mkdir(parents=True)
    (found,) = find_runs(tmp_path)
    with pytest.raises(BadInput, match="query_metrics"):
        read_found(found)
