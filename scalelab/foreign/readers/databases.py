"""SQLite databases of runs: MLflow's (`mlflow.db`, the default store of its version 3) and Trackio's (`PROJECT.db`)."""

import functools
import math
import pathlib
import sqlite3
from collections.abc import Callable
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.foreign.readers.mlflow import plain_value
from scalelab.foreign.run import ForeignRun, columns_of_rows, config_values, flatten_values, merge_lines
from scalelab.untrusted.databases import columns_of, is_database, open_database
from scalelab.untrusted.documents import parse_json

SUFFIXES = (".db", ".sqlite", ".sqlite3")
MLFLOW = {
    "runs": {"run_uuid", "status", "lifecycle_stage", "experiment_id"},
    "metrics": {"run_uuid", "key", "value", "step", "is_nan"},
    "params": {"run_uuid", "key", "value"},
}
TRACKIO = {"metrics": {"run_name", "step", "metrics"}, "configs": {"run_name", "config"}}
LARGEST = 1.7976931348623157e308  # what MLflow stores for an infinite value, with its sign
MOST_RUNS = 50_000
MOST_ROWS = 2**26  # of one run
Reader = Callable[[], ForeignRun]


def list_runs(path: pathlib.Path) -> list[tuple[str, Reader]] | None:
    """List (name, what reads it) of a database's runs; None for a file that is not one with the tables of these."""
    if not is_database(path):
        return None
    with open_database(path) as connection:
        if _holds(connection, MLFLOW):
            return _list_mlflow(connection, path)
        if _holds(connection, TRACKIO):
            key = "run_id" if "run_id" in columns_of(connection, "metrics") else "run_name"
            found = connection.execute(
                f"SELECT {key}, run_name FROM metrics GROUP BY 1 ORDER BY min(id) LIMIT ?", (MOST_RUNS,)
            ).fetchall()
            return [(str(name), functools.partial(_read_trackio, path, key, run, str(name))) for run, name in found]
    return None


def _holds(connection: sqlite3.Connection, tables: dict[str, set[str]]) -> bool:
    return all(needed <= {*columns_of(connection, table)} for table, needed in tables.items())


def _list_mlflow(connection: sqlite3.Connection, path: pathlib.Path) -> list[tuple[str, Reader]]:
    """The runs of MLflow's tables in order of their start, with their experiment's name if there are several."""
    title = "name" if "name" in columns_of(connection, "runs") else "run_uuid"  # since MLflow 2
    rows = connection.execute(
        f"SELECT run_uuid, {title}, status, lifecycle_stage, experiment_id FROM runs"
        " ORDER BY start_time, run_uuid LIMIT ?",
        (MOST_RUNS,),
    ).fetchall()
    names: dict[Any, str] = {}
    if {"experiment_id", "name"} <= {*columns_of(connection, "experiments")}:
        names = dict(connection.execute("SELECT experiment_id, name FROM experiments").fetchall())
    several = len({row[4] for row in rows}) > 1
    runs = list[tuple[str, Reader]]()
    for run, name, status, stage, experiment in rows:
        label = f"{names.get(experiment, experiment)}/{name or run}" if several else str(name or run)
        facts = {"run_name": str(name or run), "experiment": str(names.get(experiment, experiment))}
        state = str(status).lower() if status else None
        runs.append((label, functools.partial(_read_mlflow, path, run, label, facts, state, stage)))
    return runs


def _read_mlflow(
    path: pathlib.Path, run: str, label: str, facts: dict[str, str], state: str | None, stage: str
) -> ForeignRun:
    """Read a run of MLflow's tables. BadInput for one that was deleted there, and for one without a metric."""
    if stage == "deleted":
        raise BadInput(f"{str(path)!r}: the run {label!r} was deleted in MLflow: it is not read")
    with open_database(path) as connection:
        rows = connection.execute(
            "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY rowid LIMIT ?", (run, MOST_ROWS)
        ).fetchall()
        params = connection.execute("SELECT key, value FROM params WHERE run_uuid = ?", (run,)).fetchall()
    if not rows:
        raise BadInput(f"{str(path)!r}: the run {label!r} has no metric: nothing was logged with mlflow.log_metric")
    series: dict[str, tuple[list[int], list[float]]] = {}
    for key, step, value, is_nan in rows:
        steps, values = series.setdefault(str(key), ([], []))
        steps.append(int(step))
        values.append(math.nan if is_nan else float(value))
    columns = merge_lines((key, steps, _with_infinities(values)) for key, (steps, values) in series.items())
    config = config_values({str(key): plain_value(str(value)) for key, value in params}) | facts
    return ForeignRun(label, "MLflow's database", [path], columns, config, state=state)


def _with_infinities(values: list[float]) -> Any:
    array = np.asarray(values, float)
    return np.where(np.abs(array) >= LARGEST, np.copysign(np.inf, array), array)


def _read_trackio(path: pathlib.Path, key: str, run: str, name: str) -> ForeignRun:
    """Read a run of Trackio's tables, whose rows hold a JSON object of metrics."""
    with open_database(path) as connection:
        rows = connection.execute(
            f"SELECT step, metrics FROM metrics WHERE {key} = ? ORDER BY id LIMIT ?", (run, MOST_ROWS)
        ).fetchall()
        key = key if key in columns_of(connection, "configs") else "run_name"
        configs = connection.execute(f"SELECT config FROM configs WHERE {key} = ?", (run,)).fetchall()
    try:
        lines = [{"step": int(step)} | dict(flatten_values(parse_json(text))) for step, text in rows]
        config = config_values(parse_json(configs[-1][0])) if configs else {}
    except (TypeError, ValueError) as error:
        raise BadInput(f"{str(path)!r}: the run {name!r} can't be read: {error}") from None
    columns, texts = columns_of_rows(lines)
    return ForeignRun(name, "Trackio's database", [path], columns, config | {"run_name": name}, texts)
