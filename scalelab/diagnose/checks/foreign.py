"""Evidence on runs that others trained, from a part of what a run of this package has.

`metrics_evidence` takes lines with a step each, under this package's names, and what is known of the config; what a
check asks besides is a gap.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalelab.config.keys import key_records
from scalelab.diagnose.evidence import NO_CONFIG, Evidence, KnownValues, gather_evidence, one_a_step, read_series
from scalelab.errors import BadInput
from scalelab.record import records

WARMUP = 0.05  # share of the steps taken as warm-up where no LR was logged


def open_evidence(folder: pathlib.Path) -> Evidence:
    """Gather the evidence on a run's folder; of a run that another program trained what its source had."""
    if not (folder / "config.json").exists() or not records.is_imported(record := records.read_record(folder)):
        return gather_evidence(folder)
    stored = records.flatten_keys(records.read_config(folder))
    keys = key_records()
    known = {key: value for key, value in stored.items() if key in keys and value is not None and key != "log.role"}
    evidence = metrics_evidence(
        records.read_metrics(folder), folder, known, records.read_layers(folder), records.read_events(folder)
    )
    return dataclasses.replace(evidence, record=record)


def metrics_evidence(
    lines: Sequence[Mapping[str, Any]], folder: pathlib.Path, known: Mapping[str, Any] | None = None,
    layers: Sequence[Mapping[str, Any]] = (), events: Sequence[Mapping[str, Any]] = (),
) -> Evidence:  # fmt: skip
    """Make the evidence on a run of which metrics are known: `lines` with a step each, and what else there is.

    `known`: values of its config by `group.key`. BadInput without a line of training.
    """
    rows = one_a_step(line for line in lines if line.get("train_loss") is not None)
    if not rows:
        raise BadInput(
            f"{folder.name!r} has no line with a step and a train_loss; --columns=train_loss=NAME names its column"
        )
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
