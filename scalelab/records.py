"""A run is a folder with a record. This is its one schema, its crash-safe writing, and the reading of many runs.

    D/config.json   the resolved config           D/metrics.jsonl   one object a line; `val_loss` only on evaluations
    D/record.json   N, FLOPs, data, versions      D/events.jsonl    the logbook: start, resume, skip, diverged, note, …
    D/layers.jsonl  norms and activations a layer D/checkpoints/    Orbax
    D/evaluations.jsonl   one line for each step, weights and set that `scalelab eval` scored
    D/runs/NAME/    the runs of a sweep or a study

Lines are appended with one write each, so a crash can only leave the last one torn; a torn last line is ignored.
"""

import pathlib
import time
from collections.abc import Mapping
from typing import Any

from scalelab import lock, set_by
from scalelab.errors import BadInput
from scalelab.identity import check_config_matches_record
from scalelab.jsonfiles import (
    NUMBER,
    NUMBERS,
    SCALAR,
    TEXT,
    WHOLE,
    Folder,
    append_json_lines,
    describe_mismatch,
    fsync,
    keep_json_lines,
    last_line,
    numbered_lines,
    read_json,
    read_json_lines,
    sync_to_disk,
    write_json,
)

# From jsonfiles, for who reads records.
__all__ = ("append_json_lines", "fsync", "read_json", "read_json_lines", "sync_to_disk", "write_json")

# What is checked of a file whenever it is read: a hand-edited value is one line, never a traceback.
METRICS_SCHEMA = {"step": WHOLE, "*": (NUMBER, None)}
LAYERS_SCHEMA = {"step": WHOLE, "*": NUMBERS}
LOG_SCHEMAS: dict[str, dict] = {
    "metrics.jsonl": METRICS_SCHEMA,
    "layers.jsonl": LAYERS_SCHEMA,
}  # what a run logs as it trains
EVENT_SCHEMA = {"time": NUMBER, "step": (WHOLE, None), "kind": TEXT, "text?": TEXT}
EVALUATION_SCHEMA = {
    "step": WHOLE, "weights": TEXT, "set": TEXT, "fingerprint": TEXT, "kind": TEXT, "metrics": {"*": (NUMBER, None)},
}  # fmt: skip
CONFIG_SCHEMA = {"optim?": {"own?": {"*": (NUMBER, None)}, "*": SCALAR}, "*": {"*": SCALAR}}
DAMAGED_STATUS = "damaged"  # the status of a run whose files can't be read, among others
ROW_COLUMNS = (
    "name", "folder", "role", "status", "N", "N_non_embedding", "N_kaplan", "N_chinchilla", "D", "C", "C_6ND",
    "C_chinchilla", "val_loss", "bpb", "identity", "mixed",
)  # fmt: skip
_NUMBERS_SCHEMA = {"*": (NUMBER, None)}
RECORD_SCHEMA = {
    "name?": TEXT, "identity?": TEXT, "next_identity?": TEXT, "status?": TEXT, "steps?": WHOLE, "tokens?": NUMBER,
    "val_loss?": (NUMBER, None), "bpb?": (NUMBER, None), "by_source?": _NUMBERS_SCHEMA,
    "params?": {"*": WHOLE}, "params_by_group?": {"*": WHOLE}, "flops_per_token?": _NUMBERS_SCHEMA, "flops?": _NUMBERS_SCHEMA,
    "data?": {"fingerprint?": TEXT, "bytes_per_token?": NUMBER, "entropy_rate?": (NUMBER, None)},
    "versions?": {"*": TEXT}, "mesh?": {}, "peak_flops?": NUMBER, "pack?": {"checkpoints": TEXT, "trial": TEXT, "former?": {"*": TEXT}},
    "git?": {"*": {"*": SCALAR}}, "tracker_id?": TEXT, "set_by?": {"*": TEXT}, "dtypes?": {}, "determinism?": {}, "init_from?": {}, "branch_from?": {},
    "mixed?": {"*": {"step": WHOLE, "changes": {"*": TEXT}, "fresh": TEXT}},
}  # fmt: skip


def read_metrics(folder: Folder) -> list[dict]:
    """Training and evaluation lines of a run, in order of writing."""
    return read_json_lines(pathlib.Path(folder) / "metrics.jsonl", METRICS_SCHEMA)


def read_layers(folder: Folder) -> list[dict]:
    """Lines of `step` and what was measured there: a list is a value a layer, a number is of a group or of the logits."""
    return read_json_lines(pathlib.Path(folder) / "layers.jsonl", LAYERS_SCHEMA)


def log_paths(folder: Folder) -> list[pathlib.Path]:
    """The files that grow as a run trains, which its checkpoints rely on; those it has no use for don't exist."""
    return [pathlib.Path(folder) / name for name in LOG_SCHEMAS]


def last_metrics(folder: Folder) -> dict[str, float | None]:
    """The metrics of the last step that was logged, by name; {} where none was."""
    path = pathlib.Path(folder) / "metrics.jsonl"
    line = last_line(path, lambda row: "val_loss" not in row and not describe_mismatch(row, METRICS_SCHEMA)) or {}
    return {key: value for key, value in line.items() if key not in ("step", "tokens", "time")}


def read_config(folder: Folder) -> dict[str, dict[str, Any]]:
    """The resolved config of a run, {group: {key: value}}. BadInput: damaged, no plain value, or not the one of its record."""
    path = pathlib.Path(folder) / "config.json"
    config: dict[str, dict[str, Any]] = read_json(path, CONFIG_SCHEMA)
    if "role" not in config.get("log", {}):
        raise BadInput(f"{path} has no log.role, which every run's has: was it edited?")
    read_record(folder)
    return config


def read_record(folder: Folder) -> dict[str, Any]:
    """The run's record; {} where it has none yet. BadInput: damaged, a value not of its kind, or config.json is another run's."""
    path = pathlib.Path(folder) / "record.json"
    record: dict[str, Any] = read_json(path, RECORD_SCHEMA) if path.exists() else {}
    if "identity" in record:
        _check_config_identity(pathlib.Path(folder), record)
    return record


def _check_config_identity(folder: pathlib.Path, record: Mapping[str, Any]) -> None:
    """BadInput where config.json has other values than those the record was written for. A broken one is others' affair."""
    try:
        values = flatten_keys(read_json(folder / "config.json")) if (folder / "config.json").exists() else {}
    except BadInput:
        return
    if values:
        check_config_matches_record(folder / "config.json", values, record)


def read_events(folder: Folder) -> list[dict]:
    """The run's logbook. A damaged line of it stands there as a warning, at the time of the line before."""
    path, events, time_before = pathlib.Path(folder) / "events.jsonl", [], 0.0
    for number, text, row in numbered_lines(path, EVENT_SCHEMA):
        what = f"line {number} of {path} is damaged: {text[:60].decode(errors='replace')!r}"
        events.append(row or {"time": time_before, "step": None, "kind": "warning", "text": what})
        time_before = events[-1]["time"]
    return events


def rewind_metrics(folder: Folder, step: int) -> list[str]:
    """Drop what was logged after `step`, and damaged lines: the resumed run will write the former again.

    The lines that stay keep their bytes. Returns what to warn of: the damaged lines; the file as it was is then kept beside it.
    """
    warnings = []
    for path in log_paths(folder):
        if path.exists() or path.name == "metrics.jsonl":
            warnings += keep_json_lines(path, LOG_SCHEMAS[path.name], lambda row: row["step"] <= step)
    return warnings


def write_event(folder: Folder, kind: str, step: int | None = None, text: str = "", **fields: Any) -> None:
    """One line in the run's logbook. `kind` says what happened: start, resume, skip, stalled, diverged, failed, stopped, done; where the
    run comes from: init_from, branch, fallback, moved, config_change, code_change; what is worth a word: chosen, schedule, layout,
    precision, warning; or a note of the user's."""
    path = pathlib.Path(folder) / "events.jsonl"
    if torn := append_json_lines(path, [{"time": time.time(), "step": step, "kind": kind, "text": text} | fields]):
        append_json_lines(path, [{"time": time.time(), "step": step, "kind": "warning", "text": torn}])


def write_evaluations(folder: Folder, rows: list[dict]) -> list[str]:
    """Write rows of evaluations.jsonl: step, weights, set, fingerprint, kind, metrics. One a (step, weights, set): the last.

    Returns the sets whose row was of other content (another fingerprint). Any number of processes may do this at once.
    """
    path = pathlib.Path(folder) / "evaluations.jsonl"
    with lock.hold_file(path.with_name(".evaluations.lock")):
        old, new = (
            {_evaluation_key(row): row for row in read_evaluations(folder)},
            {_evaluation_key(row): row for row in rows},
        )
        draft = path.with_suffix(".tmp")
        draft.unlink(missing_ok=True)
        append_json_lines(draft, [*(row for key, row in old.items() if key not in new), *new.values()])
        sync_to_disk(draft)
        draft.replace(path)
    both = old.keys() & new.keys()
    return sorted({key[2] for key in both if old[key]["fingerprint"] != new[key]["fingerprint"]})


def _evaluation_key(row: dict) -> tuple[int, str, str]:
    return row["step"], row["weights"], row["set"]


def read_evaluations(folder: Folder) -> list[dict]:
    """What `scalelab eval` scored of a run, in order of writing."""
    return read_json_lines(pathlib.Path(folder) / "evaluations.jsonl", EVALUATION_SCHEMA)


def flatten_keys(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level of dotted keys."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= flatten_keys(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def rows_by_source(columns: Mapping[str, Any]) -> list[dict]:
    """One row a source of columns KIND/SOURCE: `source`, `val_loss`, `bpb`, `tokens`, `epochs`; None where there is none."""
    names = dict.fromkeys(key.partition("/")[2] for key in columns if key.startswith("tokens/"))
    kinds = ("val_loss", "bpb", "tokens", "epochs")
    return [{"source": name} | {kind: columns.get(f"{kind}/{name}") for kind in kinds} for name in names]


def _last_step_scores(folder: pathlib.Path, step: int | None) -> dict[str, float]:
    """`{"brackets_acc": …, "ema_brackets_acc": …}` at the run's last step: those of other steps belong to other N, D, C."""
    return {
        ("" if row["weights"] == "trained" else f"{row['weights']}_") + f"{row['set']}_{metric}": value
        for row in read_evaluations(folder)
        if row["step"] == step
        for metric, value in row["metrics"].items()
    }


def describe_config_changes(record: Mapping[str, Any]) -> str | None:
    """`optim.peak_lr 0.01 -> 0.05 at step 20; …`: what changed on a run's way; None of a run that went on as it began."""
    parts = []
    for entry in record.get("mixed", {}).values():
        changed = ", ".join(f"{key} {value}" for key, value in entry["changes"].items())
        parts.append(f"{changed} at step {entry['step']}")
    return "; ".join(parts) or None


def run_folders(folder: Folder) -> list[pathlib.Path]:
    """The folder itself if it is a run, else every run in its `runs/` (a sweep's), else every run in it. BadInput where there is none."""
    folder = pathlib.Path(folder)
    if (folder / "config.json").exists():
        if not is_config(folder / "config.json"):
            raise BadInput(
                f"{str(folder / 'config.json')!r} is not a run's: values in groups, as configs/base.py has them"
            )
        return [folder]
    below = (
        sorted(path.parent for path in place.glob("*/config.json") if _may_be_config(path))
        for place in (folder / "runs", folder)
    )
    found = next(filter(None, below), [])
    if not found:
        what = "no such folder" if not folder.exists() else "no config.json, */config.json or runs/*/config.json in it"
        raise BadInput(f"{str(folder)!r} holds no run: {what}")
    return found


def is_config(path: Folder) -> bool:
    """Whether this config.json is a run's: a model of Hugging Face's has one too, and may lie beside runs. BadInput: broken."""
    return _in_groups(read_json(path))


def _may_be_config(path: pathlib.Path) -> bool:
    """As `is_config`; one that can't be read, or stands beside a record, is a damaged one: its row will say so."""
    try:
        return is_config(path) or (path.parent / "record.json").exists()
    except BadInput:
        return True


def _in_groups(content: Any) -> bool:
    return isinstance(content, dict) and all(isinstance(part, dict) for part in content.values())


def read_runs(folder: Folder) -> list[dict]:
    """One flat row a run: identity, status, N and C by every convention, D, losses, config values and the last metrics.

    Config values are named `group.key`, metrics as the step names them.

    Of several runs a damaged one has the status "damaged", with the reason in `describe_damage`; a single one is BadInput.
    """
    folders = run_folders(folder)
    if folders == [pathlib.Path(folder)]:
        return [read_run(folders[0])]
    return [_row_or_damage(path) for path in folders]


def _row_or_damage(folder: pathlib.Path) -> dict:
    try:
        return read_run(folder)
    except BadInput as error:
        row = dict.fromkeys(ROW_COLUMNS) | {"name": folder.name, "folder": str(folder), "role": ""}
        return row | {"status": DAMAGED_STATUS, "damage": str(error)}


def describe_damage(folder: pathlib.Path) -> str:
    """What can't be read of a run, as text; "" where all of it can."""
    try:
        read_run(folder), read_metrics(folder), read_layers(folder), read_events(folder)
    except BadInput as error:
        return str(error)
    return ""


def read_run(folder: pathlib.Path) -> dict:
    """The row of one run; what an unfinished run doesn't know yet is None."""
    config, record = read_config(folder), read_record(folder)
    params, flops = record.get("params", {}), record.get("flops", {})
    row = {
        "name": folder.name,
        "folder": str(folder),
        "role": config["log"]["role"],
        "status": record.get("status", "starting"),
        "N": params.get("total"),
        "N_non_embedding": params.get("non_embedding"),
        "N_kaplan": params.get("kaplan"),
        "N_chinchilla": params.get("chinchilla"),
        "D": record.get("tokens"),
        "C": flops.get("exact"),
        "C_6ND": flops.get("6ND"),
        "C_chinchilla": flops.get("chinchilla"),
        "val_loss": record.get("val_loss"),
        "bpb": record.get("bpb"),
        "identity": record.get("identity"),
        "mixed": describe_config_changes(record),
    }
    row |= record.get("by_source", {}) | {
        key: value for key, value in flatten_keys(config).items() if key != set_by.NOTES_KEY
    }
    measured = last_metrics(folder) | _last_step_scores(folder, record.get("steps"))
    return row | {key: value for key, value in measured.items() if key not in row}
