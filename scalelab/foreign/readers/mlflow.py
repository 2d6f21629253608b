"""MLflow's file store: a run is a folder with `meta.yaml`, `metrics/NAME` (lines of time, value, step), `params`."""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.foreign.readers.configs import read_config_file
from scalelab.foreign.run import Column, ForeignRun, config_values
from scalelab.untrusted.files import read_bytes

META, METRICS, PARAMS = "meta.yaml", "metrics", "params"
STATES = {1: "running", 2: "scheduled", 3: "finished", 4: "failed", 5: "killed"}  # mlflow.entities.RunStatus
MOST_BYTES, MOST_VALUE_BYTES, MOST_FILES = 2**28, 2**16, 4000


def is_mlflow_run(folder: pathlib.Path) -> bool:
    """Whether a folder is one of a run in MLflow's file store."""
    metrics = folder / METRICS
    return (folder / META).is_file() and metrics.is_dir() and not metrics.is_symlink()


def read_mlflow_run(folder: pathlib.Path) -> ForeignRun:
    """Read a run's folder. BadInput for one that was deleted there, or has no metric that can be read."""
    meta = read_config_file(folder / META)
    if meta.get("lifecycle_stage") == "deleted":
        raise BadInput(f"{str(folder)!r} was deleted in MLflow: it is not read")
    metrics = {name: _read_metric(path) for name, path in _files_below(folder / METRICS)}
    if not metrics:
        raise BadInput(f"{str(folder)!r} holds no metric: nothing was logged with mlflow.log_metric")
    steps = np.unique(np.concatenate([step for step, _ in metrics.values()]))
    columns = {"step": Column(steps.astype(float), np.ones(len(steps), bool))}
    for name, (step, values) in metrics.items():
        place = np.searchsorted(steps, step)
        every, present = np.full(len(steps), np.nan), np.zeros(len(steps), bool)
        every[place], present[place] = values, True  # a step that was logged again: its last value counts
        columns[name] = Column(every, present)
    config = config_values({name: plain_value(_read_parameter(path)) for name, path in _files_below(folder / PARAMS)})
    name = str(meta.get("run_name") or meta.get("run_id") or folder.name)
    config["run_name"] = name
    status = meta.get("status")
    state = STATES.get(status, str(status)) if isinstance(status, int) else None
    return ForeignRun(name, "MLflow run", [folder / META, *_paths(folder)], columns, config, state=state)


def _paths(folder: pathlib.Path) -> list[pathlib.Path]:
    return [path for part in (METRICS, PARAMS) for _, path in _files_below(folder / part)]


def _files_below(folder: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """Yield (name with slashes, path) of each regular file: `train/loss` lies in a folder `train`."""
    count = 0
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            path = pathlib.Path(place, name)
            if path.is_symlink() or name.startswith("."):
                continue
            count += 1
            if count > MOST_FILES:
                raise BadInput(f"{str(folder)!r} holds more than {MOST_FILES:,} files")
            yield path.relative_to(folder).as_posix(), path


def _read_metric(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values) of a metric's file, in the order in which they were logged."""
    lines = read_bytes(path, MOST_BYTES).decode(errors="replace").splitlines()
    try:
        parts = [line.split() for line in lines if line.strip()]
        return np.array([int(each[2]) for each in parts]), np.array([float(each[1]) for each in parts])
    except (ValueError, IndexError):
        raise BadInput(f"{str(path)!r} is not lines of (time, value, step), as MLflow writes metrics") from None


def _read_parameter(path: pathlib.Path) -> str:
    return read_bytes(path, MOST_VALUE_BYTES).decode(errors="replace")


def plain_value(text: str) -> Any:
    """The value of a parameter, which MLflow keeps as text: a number where it reads as one."""
    text = text.strip()
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"True": True, "False": False, "None": None}.get(text, text)
