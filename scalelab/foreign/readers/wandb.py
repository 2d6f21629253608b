"""W&B: an offline run's folder or `.wandb` file, an export (history as JSON lines, CSV or parquet; config), and a
chart's CSV of several runs, whose columns are `RUN - METRIC`, each with its __MIN and __MAX.

Numbers of fields are those of the message Record in wandb.proto.wandb_internal_pb2 (wandb 0.31.0).
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.foreign.readers import configs, wire
from scalelab.foreign.readers.lines import join_columns, read_lines
from scalelab.foreign.run import ForeignRun, column_of_cells, columns_of_rows, config_values, flatten_values
from scalelab.untrusted.documents import parse_json

SUMMARY_FILE, CONFIG_FILE, FILES_FOLDER = "wandb-summary.json", "config.yaml", "files"
HISTORY, CONFIG, RUN, EXIT = 2, 5, 17, 18  # fields of a Record
ITEM, KEY, NESTED_KEY, VALUE_JSON = 1, 1, 2, 16  # of a history, config or summary, and of its items
HISTORY_STEP, STEP_NUMBER = 2, 1
RUN_ID, RUN_CONFIG, RUN_NAME = 1, 4, 8
EXIT_CODE = 1
FINISHED, CRASHED, RUNNING = "finished", "crashed", "running"
OWN_KEYS = ("_wandb", "_runtime")
MOST_COLUMNS = 4000


def read_wandb_file(path: pathlib.Path) -> ForeignRun:
    """Read a `.wandb` file. BadInput for another file, or one without history."""
    rows, config, state = list[dict[str, Any]](), dict[str, Any](), RUNNING
    name, names = path.stem.removeprefix("run-"), set[str]()
    try:
        for data in wire.read_records(path):
            for number, value in wire.read_fields(data):
                if not isinstance(value, bytes):
                    continue
                if number == HISTORY:
                    rows.append(_history_row(value))
                    names |= rows[-1].keys()
                    if len(names) > MOST_COLUMNS:
                        raise BadInput(f"{str(path)!r} holds more than {MOST_COLUMNS:,} metrics")
                elif number == CONFIG:
                    config |= _items(value)
                elif number == RUN:
                    fields = wire.read_fields(value)
                    name = next((text.decode() for text in wire.messages(fields, RUN_NAME) if text), name)
                    for each in wire.messages(fields, RUN_CONFIG):
                        config |= _items(each)
                elif number == EXIT:
                    codes = [code for field, code in wire.read_fields(value) if field == EXIT_CODE]
                    state = CRASHED if any(codes) else FINISHED
    except ValueError as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{str(path)!r} is damaged: {error}") from None
    if not rows:
        raise BadInput(f"{str(path)!r} holds no history: nothing was logged with wandb.log")
    columns, texts = columns_of_rows(rows)
    plain = config_values({key: value for key, value in config.items() if key not in OWN_KEYS})
    return ForeignRun(name, "W&B offline run", [path], columns, plain, texts, state)


def _history_row(data: bytes) -> dict[str, Any]:
    """One row of history, with `_step` where only the record says it."""
    row = dict(flatten_values(_items(data)))
    for step in wire.messages(wire.read_fields(data), HISTORY_STEP):
        numbers = [value for field, value in wire.read_fields(step) if field == STEP_NUMBER and isinstance(value, int)]
        row.setdefault("_step", numbers[0] if numbers else 0)
    return {key: value for key, value in row.items() if key not in OWN_KEYS}


def _items(data: bytes) -> dict[str, Any]:
    """{key: value} of a message whose field 1 repeats (key, nested key, value as JSON)."""
    values: dict[str, Any] = {}
    for item in wire.messages(wire.read_fields(data), ITEM):
        fields = wire.read_fields(item)
        keys = [text.decode() for text in wire.messages(fields, KEY)]
        keys = keys or [".".join(part.decode() for part in wire.messages(fields, NESTED_KEY))]
        texts = list(wire.messages(fields, VALUE_JSON))
        if keys and keys[0] and texts:
            values[keys[0]] = parse_json(texts[-1])
    return values


def read_export(folder: pathlib.Path, history: Sequence[pathlib.Path]) -> ForeignRun:
    """Read an export of a run: `history` files, and wandb-summary.json, config.yaml in the folder or its `files`."""
    runs = [read_lines(path) for path in sorted(history)]
    places = [place for place in (folder, folder / FILES_FOLDER) if place.is_dir()]
    config: dict[str, Any] = {}
    used = list(history)
    for place in places:
        if (place / CONFIG_FILE).is_file():
            content = configs.read_config_file(place / CONFIG_FILE)
            config |= config_values({key: value for key, value in content.items() if key not in OWN_KEYS})
            used.append(place / CONFIG_FILE)
    summary = next((place / SUMMARY_FILE for place in places if (place / SUMMARY_FILE).is_file()), None)
    state = None
    if summary:
        content = configs.read_config_file(summary)
        state = content.get("state") if isinstance(content.get("state"), str) else None
        used.append(summary)
    texts = {key: list(cells) for run in runs for key, cells in run.texts.items()} if len(runs) == 1 else {}
    columns = join_columns([run.columns for run in runs])
    if not columns and summary:  # a summary alone: the last values
        rows: list[Mapping[str, Any]] = [dict(flatten_values(content))]
        columns = {key: each for key in rows[0] if (each := column_of_cells([rows[0][key]])) and each.present.any()}
    return ForeignRun(folder.name, "W&B export", used, columns, config, texts, state)


def split_chart(run: ForeignRun) -> list[ForeignRun]:
    """The runs of a chart's CSV, in order of their columns; [] for another file."""
    drawn = [name for name in run.columns if {name + end for end in ("__MIN", "__MAX")} <= run.columns.keys()]
    by_run: dict[str, dict[str, str]] = {}
    for name in drawn:
        label, dash, metric = name.rpartition(" - ")
        if dash:
            by_run.setdefault(label, {})[metric] = name
    unnamed = [name for name in drawn if " - " not in name]
    notes = (f"curves that name no run are left out: {', '.join(map(repr, unnamed[:3]))}",) if unnamed else ()
    ends = ("", "__MIN", "__MAX")
    shared = [name for name in run.columns if not any(name == each + end for each in drawn for end in ends)]
    runs = []
    for label, metrics in by_run.items():
        columns = {metric: run.columns[name] for metric, name in metrics.items()}
        rows = np.flatnonzero(np.any([each.present for each in columns.values()], axis=0))
        part = dataclasses.replace(run, columns={**{name: run.columns[name] for name in shared}, **columns}, texts={})
        runs.append(dataclasses.replace(part.at_rows(rows, label), form="the CSV of a W&B chart", notes=notes))
    return runs
