"""Evidence on runs that others trained, from a part of what a run of this package has.

A reader of another format gives `metrics_evidence` lines with a step each, under this package's names, and what it
knows of the config; what a check asks besides is a gap.
"""

import csv
import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.diagnose.evidence import NO_CONFIG, Evidence, KnownValues, gather_evidence, one_a_step, read_series
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.untrusted.files import read_text

# Columns of a CSV file by their names there; a reader of another format gives lines under the names on the right.
COLUMNS = {"step": "step", "train_loss": "train_loss", "loss": "train_loss", "val_loss": "val_loss", "lr": "lr",
           "learning_rate": "lr", "grad_norm": "grad_norm", "update_norm": "update_norm", "param_norm": "param_norm",
           "tokens": "tokens", "tokens_per_s": "tokens_per_s"}  # fmt: skip
MOST_TABLE_BYTES = 2**28
WARMUP = 0.05  # share of the steps taken as warm-up where no LR was logged


def open_evidence(place: pathlib.Path) -> Evidence:
    """Gather the evidence on a run's folder, or on a metrics.jsonl without a config, or a CSV file with COLUMNS."""
    if place.suffix == ".csv":
        return metrics_evidence(_read_table(place), place)
    folder = place.parent if place.name == "metrics.jsonl" else place
    if not (folder / "config.json").exists() and (folder / "metrics.jsonl").exists():
        return metrics_evidence(records.read_metrics(folder), folder, layers=records.read_layers(folder))
    return gather_evidence(folder)


def metrics_evidence(
    lines: Sequence[Mapping[str, Any]], folder: pathlib.Path, known: Mapping[str, Any] | None = None,
    layers: Sequence[Mapping[str, Any]] = (), events: Sequence[Mapping[str, Any]] = (),
) -> Evidence:  # fmt: skip
    """Make the evidence on a run of which metrics are known: `lines` with a step each, and what else there is.

    `known`: values of its config by `group.key`. BadInput without a line of training.
    """
    rows = one_a_step(line for line in lines if line.get("train_loss") is not None)
    if not rows:
        raise BadInput(f"{str(folder)!r} has no line with a step and a train_loss")
    steps = np.array([row["step"] for row in rows], int)
    lr = read_series(rows, "lr").finite()
    warmup = int(lr.steps[np.argmax(lr.values)]) if len(lr.steps) else round(WARMUP * steps[-1])
    derived = {
        "train.steps": int(steps[-1]), "log.every_steps": int(np.median(np.diff(steps))) if len(steps) > 1 else 1,
        "schedule.warmup_steps": warmup if 2 * warmup < steps[-1] else 0, "guard.policy": "off", "diagnose.accept": "",
    }  # fmt: skip
    values = KnownValues(derived | dict(known or {}))
    scored = one_a_step(line for line in lines if line.get("val_loss") is not None)
    return Evidence(folder, values, {}, rows, scored, one_a_step(layers), list(events), {}, no_data=NO_CONFIG)


def _read_table(path: pathlib.Path) -> list[dict[str, Any]]:
    """Read the lines of a CSV file with a header; columns that COLUMNS does not name are left out."""
    lines = list[dict[str, Any]]()
    for row in csv.DictReader(io.StringIO(read_text(path, MOST_TABLE_BYTES))):
        named = {COLUMNS[key.strip()]: text for key, text in row.items() if key and key.strip() in COLUMNS}
        try:
            line = {name: float(text) for name, text in named.items() if text and text.strip()}
        except ValueError as error:
            raise BadInput(f"{str(path)!r}: line {len(lines) + 2} has a value that is not a number") from error
        if "step" not in line or not line["step"].is_integer():
            raise BadInput(
                f"{str(path)!r}: line {len(lines) + 2} has no step; its columns are named step, train_loss, …"
            )
        lines.append(line | {"step": int(line["step"])})
    return lines
