"""Records of runs: the one schema of a run's folder, and its crash-safe writing and reading.

    D/config.json   the resolved config           D/metrics.jsonl   one object a line; `val_loss` only on evaluations
    D/record.json   N, FLOPs, data, versions      D/events.jsonl    the logbook: start, resume, skip, diverged, note, …
    D/layers.jsonl  norms, activations per layer  D/checkpoints/    Orbax
    D/evaluations.jsonl   one line for each step, weights and set that `scalelab eval` scored
    D/runs/NAME/    the runs of a sweep or a study

D and C are counted, never taken from the present config. The ledger of a run is in two places: `facts[NAME]["ledger"]`
of the manifest of its last checkpoint (`steps`, `tokens`, `sequences`, `position`, `flops` by convention, …; see
train/ledger.py), and `step`, `tokens`, `flops` (exact convention) of the last line of metrics.jsonl.
record.json's `steps`, `tokens` and `flops` are the ledger's at its step; its `val_loss` is that of the last line of
metrics.jsonl that has one.

Lines are appended with one write each, so a crash can only tear the last one; a torn last line is ignored.
"""

import contextlib
import math
import os
import pathlib
import time
from collections.abc import Mapping
from typing import Any

from scalelab.errors import BadInput
from scalelab.record.identity import check_config_matches_record
from scalelab.record.jsonfiles import (
    NUMBER,
    NUMBERS,
    SCALAR,
    TEXT,
    WHOLE,
    Folder,
    fsync,
    read_json,
    sync_to_disk,
    write_json,
)
from scalelab.record.jsonlines import append_json_lines, first_line, keep_json_lines, numbered_lines, read_json_lines
from scalelab.record.soundness.record import check_record
from scalelab.untrusted.files import open_file
from scalelab.untrusted.paths import check_name, path_below

# Passed on from jsonfiles to readers of records.
__all__ = ("append_json_lines", "fsync", "read_json", "read_json_lines", "sync_to_disk", "write_json")

# Schemas that files are checked against whenever they are read: a hand-edited value gives one line, never a traceback.
METRICS_SCHEMA = {
    "step": WHOLE, "tokens?": NUMBER, "flops?": NUMBER, "train_loss?": NUMBER, "val_loss?": NUMBER,
    "grad_norm?": NUMBER, "*": (NUMBER, None),
}  # fmt: skip
LAYERS_SCHEMA = {"step": WHOLE, "*": NUMBERS}
WRITTEN = (  # written by training, besides the logs
    "config.json", "record.json", "events.jsonl", "checkpoints", "tensorboard", "wandb", "stacks.txt",
    "autotuned.textproto",
)  # fmt: skip
LOG_SCHEMAS: dict[str, dict] = {"metrics.jsonl": METRICS_SCHEMA, "layers.jsonl": LAYERS_SCHEMA}  # logs of training
EVENT_SCHEMA = {"time": NUMBER, "step": (WHOLE, None), "kind": TEXT, "text?": TEXT}
MOST_EVALUATION_BYTES = 2**25  # 80,000 rows
EVALUATION_SCHEMA = {
    "step": WHOLE, "weights": TEXT, "set": TEXT, "fingerprint": TEXT, "kind": TEXT, "metrics": {"*": (NUMBER, None)},
}  # fmt: skip
CONFIG_SCHEMA = {"optim?": {"own?": {"*": (NUMBER, None)}, "*": SCALAR}, "*": {"*": SCALAR}}
DAMAGED_STATUS = "damaged"  # status of an unreadable run among others
IMPORTED = "imported"  # `provenance` of a run that another program trained: logs without weights (`foreign.write`)
STOPPED_EARLY_STATUS = "stopped early"  # by a sweep's rule or eval.patience, before its planned end
_NUMBERS_SCHEMA = {"*": (NUMBER, None)}
OWN_CODE_SCHEMA = {"*": {"function": TEXT, "files": {"*": TEXT}, "curve?": {"*": NUMBER}}}
RECORD_SCHEMA = {
    "provenance?": TEXT, "source?": {}, "progress?": _NUMBERS_SCHEMA,
    "name?": TEXT, "identity?": TEXT, "next_identity?": TEXT, "status?": TEXT, "ended_by?": TEXT,
    "steps?": WHOLE, "tokens?": NUMBER,
    "val_loss?": (NUMBER, None), "bpb?": (NUMBER, None), "by_source?": _NUMBERS_SCHEMA,
    "params?": {"*": WHOLE}, "params_by_group?": {"*": WHOLE},
    "flops_per_token?": _NUMBERS_SCHEMA, "flops?": _NUMBERS_SCHEMA, "computed_flops_per_token?": NUMBER,
    "data?": {
        "fingerprint?": TEXT, "bytes_per_token?": NUMBER, "entropy_rate?": (NUMBER, None), "bpb_bound?": TEXT,
    },
    "versions?": {"*": TEXT}, "device?": TEXT, "mesh?": {"devices?": WHOLE, "*": SCALAR},
    "peak_flops?": NUMBER, "seconds?": _NUMBERS_SCHEMA,
    "seconds_by_process?": {"*": _NUMBERS_SCHEMA},
    "pack?": {"checkpoints": TEXT, "trial": TEXT, "former?": {"*": TEXT}},
    "git?": {"*": {"*": SCALAR}}, "tracker_id?": TEXT, "tracker_home?": {"place": TEXT, "inode": WHOLE},
    "forked_from?": TEXT, "set_by?": {"*": TEXT},
    "dtypes?": {}, "determinism?": {}, "init_from?": {}, "branch_from?": {},
    "spike_score?": NUMBER, "clip_share?": NUMBER, "rewinds?": {"*": {}}, "changes_by_hand?": {"*": {}},
    "mixed?": {"*": {"step": WHOLE, "changes": {"*": TEXT}, "fresh": TEXT}},
    "own_code?": OWN_CODE_SCHEMA, "next_own_code?": OWN_CODE_SCHEMA,
}  # fmt: skip


def read_metrics(folder: Folder) -> list[dict]:
    """Read the training and evaluation lines of a run, in order of writing."""
    return read_json_lines(pathlib.Path(folder) / "metrics.jsonl", METRICS_SCHEMA)


def read_evaluated(folder: Folder) -> list[dict]:
    """Read the lines of metrics with a validation loss, without parsing the others."""
    return read_json_lines(pathlib.Path(folder) / "metrics.jsonl", METRICS_SCHEMA, having="val_loss")


def first_metrics_time(folder: Folder) -> float | None:
    """The time of the first line of metrics; None without a line or a time. BadInput if that line is damaged."""
    line = first_line(pathlib.Path(folder) / "metrics.jsonl", METRICS_SCHEMA) or {}
    return line.get("time")


def read_layers(folder: Folder) -> list[dict]:
    """Read lines of `step` and measurements: a list has one value per layer, a number is a group's or the batch's.

    Adds `update_ratio`, the update's norm over the weights'.
    """
    return [add_update_ratio(line) for line in read_json_lines(pathlib.Path(folder) / "layers.jsonl", LAYERS_SCHEMA)]


def add_update_ratio(line: Mapping[str, Any]) -> dict[str, Any]:
    """Add `update_ratio`, and `GROUP/update_ratio` of each group, to a line of layers.jsonl where both norms exist."""
    line, kind = dict(line), "update_norm"
    for key in [key for key in line if key == kind or key.endswith(f"/{kind}")]:
        group, weights = key.removesuffix(kind), line.get(key.removesuffix(kind) + "weight_norm")
        if weights is not None:
            line[f"{group}update_ratio"] = _divide(line[key], weights)
    return line


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, list):
        return [_divide(x, y) for x, y in zip(a, b, strict=True)]
    return a / b if b else math.nan


def refuse_links(folder: Folder) -> None:
    """Raise BadInput if a file or folder that a run writes is a link: it may lead elsewhere."""
    for name in (*WRITTEN, *LOG_SCHEMAS):
        path_below(folder, name)


def log_paths(folder: Folder) -> list[pathlib.Path]:
    """Paths of the files that grow during a run and that its checkpoints rely on; unused ones don't exist."""
    return [pathlib.Path(folder) / name for name in LOG_SCHEMAS]


def read_config(folder: Folder) -> dict[str, dict[str, Any]]:
    """Read the resolved config of a run, {group: {key: value}}.

    BadInput if it is damaged, holds a value that is not plain, or is not the config of the run's record.
    """
    return read_config_and_record(pathlib.Path(folder))[0]


def read_config_and_record(folder: pathlib.Path) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Read a run's config and record, each file once; BadInput as for `read_config`."""
    path = folder / "config.json"
    config: dict[str, dict[str, Any]] = read_json(path, CONFIG_SCHEMA)
    if "role" not in config.get("log", {}):
        raise BadInput(f"{path} has no log.role, which every run's has: was it edited?")
    record = _read_record_alone(folder)
    if "identity" in record:
        check_config_matches_record(path, flatten_keys(config), record)
    return config, record


def read_record(folder: Folder) -> dict[str, Any]:
    """Read the run's record; {} if it has none yet.

    BadInput if it is damaged, holds a value of a wrong type, or config.json is another run's.
    """
    record = _read_record_alone(pathlib.Path(folder))
    if "identity" in record:
        _check_config_identity(pathlib.Path(folder), record)
    return record


def read_sound_record(folder: Folder) -> dict[str, Any]:
    """Read a record whose numbers will be used; BadInput also if config or logs contradict one of them.

    A trainer reads its own record by `read_record`: after a crash, logs may be ahead of it.
    """
    folder = pathlib.Path(folder)
    record = read_record(folder)
    if record:
        path = folder / "config.json"
        config = read_json(path, CONFIG_SCHEMA) if path.exists() else {}
        check_against_folder(folder, config, record)
    return record


def check_against_folder(folder: pathlib.Path, config: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """BadInput as of `check_record`, unless a trainer has replaced the record since it was read."""
    try:
        check_record(folder, config, record, METRICS_SCHEMA)
    except BadInput:
        if repr(_read_record_alone(folder)) == repr(record):  # compared as text: NaN is not equal to itself
            raise


def is_imported(record: Mapping[str, Any]) -> bool:
    """Whether another program trained the run of this record."""
    return record.get("provenance") == IMPORTED


def read_size(folder: Folder) -> dict[str, Any]:
    """Read `N`, `tokens` and exact `flops` of a finished run. BadInput if its record lacks one."""
    record = read_sound_record(folder)
    try:
        return {"N": record["params"]["total"], "tokens": record["tokens"], "flops": record["flops"]["exact"]}
    except KeyError as missing:
        raise BadInput(
            f"{pathlib.Path(folder) / 'record.json'} has no {missing} of a run that ended; was it edited?"
        ) from None


def _read_record_alone(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / "record.json"
    record: dict[str, Any] = read_json(path, RECORD_SCHEMA) if os.path.lexists(path) else {}
    pack = record.get("pack", {})
    for place in (pack["checkpoints"], *pack.get("former", {})) if pack else ():
        _check_pack_place(path, place)
    return record


def _check_pack_place(path: pathlib.Path, place: str) -> None:
    """Raise BadInput if a trial's record places its checkpoints outside the packs of its own sweep."""
    up, _, below = place.partition("/packs/")
    name, _, last = below.partition("/")
    check_name(name, str(path))
    if up != "../.." or last != "checkpoints":
        raise BadInput(f"{path}: pack.checkpoints is {place!r}, not ../../packs/NAME/checkpoints; was it edited?")


def _check_config_identity(folder: pathlib.Path, record: Mapping[str, Any]) -> None:
    """Raise BadInput if config.json has other values than the record's config; a broken file is reported elsewhere."""
    try:
        values = flatten_keys(read_json(folder / "config.json")) if (folder / "config.json").exists() else {}
    except BadInput:
        return
    if values:
        check_config_matches_record(folder / "config.json", values, record)


def read_events(folder: Folder) -> list[dict]:
    """Read the run's logbook. A damaged line becomes a warning, at the time of the line before."""
    path, events, time_before = pathlib.Path(folder) / "events.jsonl", [], 0.0
    for number, text, row in numbered_lines(path, EVENT_SCHEMA):
        what = f"line {number} of {path} is damaged: {text[:60].decode(errors='replace')!r}"
        events.append(row or {"time": time_before, "step": None, "kind": "warning", "text": what})
        time_before = events[-1]["time"]
    return events


def saved_log_paths(folder: Folder) -> list[pathlib.Path]:
    """Paths of the files whose length and hash stand in the manifest of a save: `log_paths` and the logbook."""
    return [*log_paths(folder), pathlib.Path(folder) / "events.jsonl"]


def rewind_metrics(folder: Folder, step: int) -> list[str]:
    """Drop damaged lines, and those logged after `step`, which the resumed run writes again.

    The other lines keep their bytes. Returns warnings about damaged lines; if there are any, the old file is kept
    beside.
    """
    warnings = []
    for path in log_paths(folder):
        if path.exists() or path.name == "metrics.jsonl":
            warnings += keep_json_lines(path, LOG_SCHEMAS[path.name], lambda row: row["step"] <= step)
    return warnings


def write_event(folder: Folder, kind: str, step: int | None = None, text: str = "", **fields: Any) -> None:
    """Write one line into the run's logbook.

    `kind`: what happened (start, resume, skip, guard, rerun, stalled, diverged, failed, stopped, stopped_early, done),
    where the run comes from (imported, init_from, branch, back_to, fallback, forked, moved, taken_over, config_change,
    code_change), a remark (chosen, no_effect, schedule, layout, precision, warning), or a user's note.
    """
    path = pathlib.Path(folder) / "events.jsonl"
    if torn := append_json_lines(path, [{"time": time.time(), "step": step, "kind": kind, "text": text} | fields]):
        append_json_lines(path, [{"time": time.time(), "step": step, "kind": "warning", "text": torn}])


def read_evaluations(folder: Folder) -> list[dict]:
    """Read the rows that `scalelab eval` wrote for a run, in order of writing. BadInput for a file of over 32 MiB."""
    path = pathlib.Path(folder) / "evaluations.jsonl"
    with contextlib.suppress(FileNotFoundError), open_file(path, MOST_EVALUATION_BYTES):
        pass
    return read_json_lines(path, EVALUATION_SCHEMA)


def flatten_keys(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to one level of dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict | Mapping):  # isinstance is much faster for dict than for Mapping
            flat.update(flatten_keys(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
