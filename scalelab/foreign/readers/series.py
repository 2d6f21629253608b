"""Logs of one value a line, by its name: DVCLive's folder of TSV files, ClearML's offline session, long tables, and
Keras's History as JSON (a list of values by name)."""

import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.foreign.readers.configs import read_config_file
from scalelab.foreign.readers.mlflow import plain_value
from scalelab.foreign.run import Column, ForeignRun, columns_of_rows, config_values, merge_lines
from scalelab.laws.read.columns import plain_name
from scalelab.laws.read.groups import names_run
from scalelab.laws.read.readers import read_raw_rows
from scalelab.untrusted.documents import parse_json, read_document
from scalelab.untrusted.files import read_bytes
from scalelab.untrusted.paths import list_folders

DVCLIVE = pathlib.Path("plots", "metrics")
CLEARML = ("task.json", "metrics.jsonl")
MOST_BYTES, MOST_FILES, MOST_DEPTH = 2**28, 2000, 8
# (names, values) of long tables: Comet's get_metrics, Aim's dataframe, the Neptune exporter's parquet, tidy tables.
LONG = (
    ("metricname", "metricvalue"),
    ("metricname", "value"),
    ("attributepath", "floatvalue"),
    ("metric", "value"),
    ("tag", "value"),
    ("key", "value"),
    ("variable", "value"),
)


def read_dvclive(folder: pathlib.Path) -> ForeignRun:
    """Read DVCLive's folder: `plots/metrics/NAME.tsv` of (step, value), `params.yaml`. BadInput for another TSV."""
    parts, files = [], []
    for name, path in _tsv_below(folder / DVCLIVE, ""):
        columns, _ = columns_of_rows(read_raw_rows(path))
        value = next((key for key in reversed(columns) if key not in ("step", "timestamp")), None)
        if value is None or "step" not in columns:
            raise BadInput(f"{str(path)!r} is not a table of (step, value), as DVCLive writes metrics")
        rows = columns["step"].present & columns[value].present
        parts.append((name, columns["step"].values[rows], columns[value].values[rows]))
        files.append(path)
    if not parts:
        raise BadInput(f"{str(folder)!r} holds no metric of DVCLive")
    settings = folder / "params.yaml"
    config = config_values(read_config_file(settings)) if settings.is_file() and not settings.is_symlink() else {}
    files += [settings] if config else []
    return ForeignRun(folder.resolve().name, "DVCLive's folder", files, merge_lines(parts), config)


def _tsv_below(folder: pathlib.Path, prefix: str, depth: int = 0) -> Iterator[tuple[str, pathlib.Path]]:
    """Yield (name with slashes, path) of the metrics of a folder and of the folders in it."""
    for path in sorted(folder.glob("*.tsv"))[:MOST_FILES]:
        if path.is_file() and not path.is_symlink():
            yield prefix + path.stem, path
    if depth < MOST_DEPTH:
        for name in list_folders(folder)[0]:
            yield from _tsv_below(folder / name, f"{prefix}{name}/", depth + 1)


def read_clearml(folder: pathlib.Path) -> ForeignRun:
    """Read the folder of a ClearML task that ran offline. BadInput for lines that are not lists of its events."""
    task_path, log = (folder / name for name in CLEARML)
    try:
        task = read_document(task_path)
        events = [
            each for line in read_bytes(log, MOST_BYTES).splitlines() if line.strip() for each in parse_json(line)
        ]
        series: dict[str, list[tuple[int, float]]] = {}
        for event in events:
            if event.get("type") == "training_stats_scalar":
                name = f"{event['metric']}/{event['variant']}"
                series.setdefault(name, []).append((int(event["iter"]), float(event["value"])))
        sections = dict(task.get("hyperparams") or {})
        config = config_values(
            {
                f"{section}.{name}": plain_value(str(each["value"]))
                for section, entries in sections.items()
                for name, each in dict(entries).items()
            }
        )
    except BadInput:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{str(folder)!r} is not a session of ClearML's offline mode: {error!r}") from None
    if not series:
        raise BadInput(f"{str(folder)!r} holds no scalar: nothing was reported with report_scalar")
    columns = merge_lines(
        (name, [step for step, _ in pairs], [value for _, value in pairs]) for name, pairs in series.items()
    )
    name = str(task.get("name") or folder.name)
    return ForeignRun(
        name,
        "ClearML's offline session",
        [log, task_path],
        columns,
        config | {"run_name": name},
        state=task.get("status") if isinstance(task.get("status"), str) else None,
    )


def read_history(path: pathlib.Path) -> ForeignRun:
    """Read the history of a Keras fit as JSON: lists of one length, a value an epoch. BadInput for anything else."""
    content = read_document(path, MOST_BYTES, follow=True)
    lists = {str(name): each for name, each in content.items()} if isinstance(content, Mapping) else {}
    lengths = {len(each) if isinstance(each, list) else 0 for each in lists.values()}
    if len(lengths) != 1 or not max(lengths):
        raise BadInput(f"{str(path)!r} is not a log of a run: lists of one length by name are read of JSON")
    columns, texts = columns_of_rows([dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)])
    return ForeignRun(path.stem, "JSON of lists", [path], columns, texts=texts)


def spread_long(
    columns: Mapping[str, Column], texts: Mapping[str, Sequence[Any]], steps: Sequence[str]
) -> tuple[dict[str, Column], dict[str, list[Any]], str] | None:
    """Turn a table with a line for each value into one with a row for each step (of a run), or None for another table.

    `steps`: plain names of steps. Returns (columns, texts, a note on columns that are left out); of values that were
    logged twice the last counts.
    """
    plain = {plain_name(name): name for name in (*columns, *texts)}
    pair = next(((plain[a], plain[b]) for a, b in LONG if plain.get(a) in texts and plain.get(b) in columns), None)
    step = next((plain[name] for name in steps if plain.get(name) in columns), None)
    if pair is None or step is None:
        return None
    run = next((name for name in texts if names_run(name) or plain_name(name) == "runhash"), None)  # Aim's
    labels = [str(each or "") for each in texts[run]] if run else [""] * len(texts[pair[0]])
    rows = np.flatnonzero(columns[pair[1]].present & columns[step].present).tolist()
    keys = [(labels[row], float(columns[step].values[row])) for row in rows]
    order = {label: place for place, label in enumerate(dict.fromkeys(labels))}
    places = {key: place for place, key in enumerate(sorted({*keys}, key=lambda key: (order[key[0]], key[1])))}
    wide = {step: Column(np.array([key[1] for key in places]), np.ones(len(places), bool))}
    for row, key in zip(rows, keys, strict=True):
        name = str(texts[pair[0]][row])
        column = wide.setdefault(name, Column(np.full(len(places), math.nan), np.zeros(len(places), bool)))
        column.values[places[key]], column.present[places[key]] = columns[pair[1]].values[row], True
    others = [name for name in (*columns, *texts) if name not in (*pair, step, run)]
    note = f"a line for each value: {pair[0]!r} names them; left out: {', '.join(map(repr, others[:4])) or 'nothing'}"
    return wide, {"run": [key[0] for key in places]} if run else {}, note
