"""Find the runs in a source: a file, one run's folder, or a folder of many; the format by names and first bytes."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from scalelab.errors import BadInput
from scalelab.foreign.readers import (
    configs,
    databases,
    lines,
    mlflow,
    printed,
    series,
    tensorboard,
    text,
    trainer,
    wandb,
    wire,
)
from scalelab.foreign.run import ForeignRun, constant_values
from scalelab.laws.read.groups import SHARED_NAMES, names_run
from scalelab.untrusted.files import open_file
from scalelab.untrusted.paths import list_folders

MLFLOW_FOLDERS = frozenset(("mlruns", "mlartifacts"))  # their `artifacts` hold files of runs, and no runs
AIM = pathlib.Path(".aim", "meta")
MOST_FOLDERS = 50_000
MOST_DEPTH = 6
SEARCHED_BYTES = 2**22
TEXT_SUFFIXES = (".log", ".txt", ".out")
NOT_LOGS = ("requirements.txt", "readme.txt", "license.txt", "output.log", "debug.log", "debug-internal.log")
PARTS = frozenset(("train", "training", "validation", "val", "eval", "test"))  # folders of one run's event files
LOG_STEMS = ("metrics", "history", "tracker_metrics", "log", "train", "training", "main", "logs", "metrics_history")
FORMATS = (
    "a W&B run folder, .wandb file or export, MLflow's and Trackio's runs, DVCLive's folder, TensorBoard event files, "
    "a trainer_state.json, a .csv, .tsv, .jsonl (also .gz) or .parquet of steps, or a text log with lines such as "
    "`step 10: loss 3.2`"
)


class Found(NamedTuple):
    """A run of a source before it is read: its name, its files, and the function that reads it."""

    name: str
    files: Sequence[pathlib.Path]
    read: Callable[[], ForeignRun]


def find_runs(source: pathlib.Path) -> list[Found]:
    """Find the runs of a source, in order of names. BadInput if there is none."""
    if not source.exists():
        raise BadInput(f"no file or folder {str(source)!r}")
    if source.is_file():
        several = list(_find_files(source))
        if not several:
            raise BadInput(f"{str(source)!r} is not a log of a run; read are {FORMATS}")
        return several
    runs = list(_walk(source, source, 0, [0]))
    if not runs:
        raise BadInput(f"{str(source)!r} holds no run of a known format; read are {FORMATS}")
    return runs


def read_found(found: Found) -> list[ForeignRun]:
    """Read a run, or the runs of a table that has a column of their names. BadInput as its reader."""
    run = found.read()
    if charts := wandb.split_chart(run):
        return charts
    column = next((name for name, cells in run.texts.items() if _tells_runs(name, cells)), None)
    if column is None:
        return [dataclasses.replace(run, name=found.name)]
    cells = np.array([str(cell or "") for cell in run.texts[column]])
    parts = [run.at_rows(np.flatnonzero(cells == name), name) for name in dict.fromkeys(cells.tolist()) if name]
    form = f"{run.form}, {len(parts)} runs by {column!r}"
    runs = []
    for part in parts:
        texts = {name: each for name, each in part.texts.items() if name != column}
        config = {**part.config, **constant_values(part.columns, texts)}
        runs.append(dataclasses.replace(part, form=form, config=config, texts=texts))
    return runs


def _tells_runs(name: str, cells: Sequence[object]) -> bool:
    """Whether a column of texts names the run of each row: by its name, or as a model's where rows share names."""
    n_labels = len({*map(str, cells)})
    return n_labels > 1 and (names_run(name) or (names_run(name, SHARED_NAMES) and n_labels < len(cells)))


def _walk(folder: pathlib.Path, root: pathlib.Path, depth: int, seen: list[int]) -> Iterator[Found]:
    """Yield the runs of a folder: itself if it is one, else its log files, and those of the folders in it."""
    seen[0] += 1
    if seen[0] > MOST_FOLDERS:
        raise BadInput(f"{str(root)!r} has more than {MOST_FOLDERS:,} folders: name one of runs")
    one = _find_folder(folder)
    if one is not None:
        yield one._replace(name=folder.relative_to(root).as_posix() if folder != root else folder.resolve().name)
        return
    prefix = folder.relative_to(root).as_posix() + "/" if folder != root else ""
    for path in files_in(folder):
        for each in _find_files(path, databases.SUFFIXES):
            yield each._replace(name=prefix + each.name)
    if depth < MOST_DEPTH:
        for name in list_folders(folder)[0]:
            is_artifacts = name == "artifacts" and not MLFLOW_FOLDERS.isdisjoint(folder.parts)
            if not name.startswith(".") and not is_artifacts:
                yield from _walk(folder / name, root, depth + 1, seen)


def files_in(folder: pathlib.Path) -> list[pathlib.Path]:
    """The regular files of a folder that are not links, in order of names; [] if it can't be listed."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
    except OSError:
        return []
    return [folder / name for name in names]


def _find_folder(folder: pathlib.Path) -> Found | None:
    """The run that a folder is; None for a folder that is not one run's."""
    files = files_in(folder)
    names = {path.name: path for path in files}
    if mlflow.is_mlflow_run(folder):
        return Found(folder.name, [names[mlflow.META]], lambda: mlflow.read_mlflow_run(folder))
    if (folder / AIM).is_dir():
        reason = f"{str(folder)!r} is a repository of Aim, which only Aim reads: write its metrics as CSV there, by \
`aim.Repo(DIR).query_metrics().dataframe()`"
        return Found(folder.name, [], functools.partial(_refuse, BadInput(reason)))
    if (folder / series.DVCLIVE).is_dir():
        return Found(folder.name, files, lambda: series.read_dvclive(folder))
    if all(name in names for name in series.CLEARML):
        return Found(folder.name, files, lambda: series.read_clearml(folder))
    offline = [path for path in files if path.suffix == ".wandb"]
    if len(offline) == 1:
        return Found(folder.name, offline, lambda: wandb.read_wandb_file(offline[0]))
    history = [path for path in files if lines.kind_of(path) and "history" in path.name.lower()]
    is_export = wandb.SUMMARY_FILE in names or (folder / wandb.FILES_FOLDER / wandb.SUMMARY_FILE).is_file()
    if is_export or (history and wandb.CONFIG_FILE in names):
        history = history or [path for path in files if lines.kind_of(path)]
        return Found(folder.name, files, lambda: wandb.read_export(folder, history))
    states = [names[trainer.STATE_FILE]] if trainer.STATE_FILE in names else _checkpoint_states(folder)
    if states:
        return Found(folder.name, states, lambda: trainer.read_trainer_state(states[-1]))
    events = [path for path in files if tensorboard.is_event_file(path)] or _events_of_parts(folder)
    if events:
        return _with_config(Found(folder.name, events, lambda: tensorboard.read_events(folder, events)), folder)
    logs = [path for path in files if lines.kind_of(path) and lines.name_of(path).lower() in LOG_STEMS]
    if len(logs) == 1:
        return _with_config(Found(folder.name, logs, lambda: lines.read_lines(logs[0])), folder)
    texts = [path for path in files if path.suffix in TEXT_SUFFIXES and path.stem.lower() in LOG_STEMS]
    reader = _find_text_reader(texts[0]) if not logs and len(texts) == 1 else None
    if reader is not None:
        return _with_config(Found(folder.name, texts, lambda: reader(texts[0])), folder)
    return None


def _checkpoint_states(folder: pathlib.Path) -> list[pathlib.Path]:
    """The trainer_state.json of a folder's checkpoints, the last step last."""
    names = [name for name in list_folders(folder)[0] if name.startswith("checkpoint-") and name[11:].isdecimal()]
    states = [folder / name / trainer.STATE_FILE for name in sorted(names, key=lambda name: int(name[11:]))]
    return [path for path in states if path.is_file() and not path.is_symlink()]


def _events_of_parts(folder: pathlib.Path) -> list[pathlib.Path]:
    """Event files of a run that writes training and validation into a folder each, as Keras does."""
    below = list_folders(folder)[0]
    if not below or not {*below} <= PARTS:
        return []
    return [path for name in below for path in files_in(folder / name) if tensorboard.is_event_file(path)]


def _find_files(path: pathlib.Path, suffixes: Sequence[str] = ()) -> Iterator[Found]:
    """Yield the runs that a file holds: those of a database (of these suffixes, if any), else the one of a log."""
    runs = None
    if path.suffix in suffixes or not suffixes:
        try:
            runs = databases.list_runs(path)
        except BadInput as refusal:
            if not suffixes:
                raise
            runs = [(path.stem, functools.partial(_refuse, refusal))]
    if runs is not None:
        yield from (Found(name, [path], read) for name, read in runs)
    elif (one := _find_file(path)) is not None:
        yield one


def _refuse(refusal: BadInput) -> ForeignRun:
    """Raise when the run is read, so that the other runs of a folder are not lost."""
    raise refusal


def _find_file(path: pathlib.Path) -> Found | None:
    """The run that a file is; None for a file that is not a log."""
    if path.name == trainer.STATE_FILE:
        return Found(path.parent.name or path.stem, [path], lambda: trainer.read_trainer_state(path))
    if path.suffix == ".wandb" or _starts_with(path, wire.HEADER):
        return Found(path.stem, [path], lambda: wandb.read_wandb_file(path))
    if tensorboard.is_event_file(path):
        return Found(path.parent.resolve().name, [path], lambda: tensorboard.read_events(path.parent, [path]))
    if lines.kind_of(path) and path.name not in NOT_LOGS:
        return Found(lines.name_of(path), [path], lambda: lines.read_lines(path))
    if path.suffix == ".json" and "history" in path.name.lower():
        return Found(path.stem, [path], lambda: series.read_history(path))
    if path.suffix in TEXT_SUFFIXES and path.name.lower() not in NOT_LOGS and (reader := _find_text_reader(path)):
        return Found(path.stem, [path], lambda: reader(path))
    return None


def _with_config(found: Found, folder: pathlib.Path) -> Found:
    """The run with the config files beside its log."""

    def read() -> ForeignRun:
        run = found.read()
        values, model, files, notes = configs.read_beside(folder)
        config, all_files = values | dict(run.config), [*run.files, *files]
        return dataclasses.replace(run, config=config, files=all_files, hf_config=model, notes=(*run.notes, *notes))

    return found._replace(read=read)


def _starts_with(path: pathlib.Path, mark: bytes) -> bool:
    try:
        with open_file(path) as file:
            return file.read(len(mark)) == mark
    except (BadInput, OSError):
        return False


def _find_text_reader(path: pathlib.Path) -> Callable[[pathlib.Path], ForeignRun] | None:
    """What reads a text log, by its first MiBs (some logs begin with the program's source); None for another text."""
    try:
        with open_file(path) as file:
            start = file.read(SEARCHED_BYTES)
    except (BadInput, OSError):
        return None
    if b"\0" in start[:4096]:
        return None
    words = start.decode(errors="replace")
    if printed.has_printed_dicts(words):
        return printed.read_printed_dicts
    return text.read_text_log if len(text.parse_lines(words)[0]) >= text.FEWEST_LINES else None
