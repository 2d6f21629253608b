"""Find the runs of a folder, and make one flat row of each: the source of tables, laws and pages."""

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scalelab import set_by
from scalelab.errors import BadInput
from scalelab.record.jsonfiles import Folder, describe_mismatch, read_json
from scalelab.record.jsonlines import last_line
from scalelab.record.records import (
    DAMAGED_STATUS,
    LAYERS_SCHEMA,
    METRICS_SCHEMA,
    check_against_folder,
    flatten_keys,
    read_config_and_record,
    read_evaluations,
    read_events,
    read_layers,
    read_metrics,
)
from scalelab.untrusted.files import check_file
from scalelab.untrusted.paths import describe_link, list_folders, path_below

ROW_COLUMNS = (
    "name", "folder", "role", "status", "N", "N_active", "N_non_embedding", "N_kaplan", "N_chinchilla", "D", "C",
    "C_6ND", "C_chinchilla", "val_loss", "bpb", "identity", "mixed", "spike_score", "rewinds", "clip_share",
)  # fmt: skip
# Measurements by layer of layers.jsonl, and how the table of runs picks the worst layer.
LAYER_COLUMNS: dict[str, Callable[[list[float]], float]] = {
    "attention_logit_max": max, "attention_entropy": min, "dead_units": max, "eps_share": max, "gradient_zeros": max,
}  # fmt: skip


def run_folders(folder: Folder) -> list[pathlib.Path]:
    """Find runs: the folder itself if it is one, else every run in its `runs/` (a sweep), else every run in it.

    BadInput if there is none, or if the folder's config.json is not a run's.
    """
    folder = pathlib.Path(folder)
    if (folder / "config.json").exists():
        if not is_config(folder / "config.json"):
            raise BadInput(
                f"{str(folder / 'config.json')!r} is not a run's: values in groups, as configs/base.py has them"
            )
        return [folder]
    runs = next(filter(None, map(_runs_in, run_places(folder))), [])
    if not runs:
        links = [describe_link(link) for place in run_places(folder) for link in linked_runs(place)]
        what = "no such folder" if not folder.exists() else "no config.json, */config.json or runs/*/config.json in it"
        raise BadInput(f"{str(folder)!r} holds no run: {links[0] if links else what}")
    return runs


def holds_runs(folder: Folder) -> bool:
    """Whether `run_folders` finds a run there; the first one is enough."""
    folder = pathlib.Path(folder)
    if (folder / "config.json").exists():
        return is_config(folder / "config.json")
    try:
        return any(
            os.path.lexists(path) and may_be_config(path)
            for place in run_places(folder)
            for path in (place / name / "config.json" for name in list_folders(place)[0])
        )
    except BadInput:
        return False


def run_places(folder: Folder) -> list[pathlib.Path]:
    """Folders that may directly hold runs: a sweep's `runs/` first. BadInput if that is a link."""
    return [path_below(folder, "runs"), pathlib.Path(folder)]


def _runs_in(place: pathlib.Path) -> list[pathlib.Path]:
    configs = [place / name / "config.json" for name in list_folders(place)[0]]
    return [path.parent for path in configs if os.path.lexists(path) and may_be_config(path)]


def linked_runs(place: pathlib.Path, links: Iterable[str] | None = None) -> list[pathlib.Path]:
    """Links in a folder that lead to runs: reported, never followed. `links`: their names if known."""
    names = list_folders(place)[1] if links is None else links
    return [place / name for name in names if os.path.exists(place / name / "config.json")]


def is_config(path: Folder) -> bool:
    """Whether this config.json is a run's; a Hugging Face model has one too, perhaps beside runs. BadInput: broken."""
    return _in_groups(read_json(path))


def may_be_config(path: Folder) -> bool:
    """Like `is_config`, but also true for a damaged run's (unreadable, or beside a record): its row will say so."""
    path = pathlib.Path(path)
    try:
        return is_config(path) or (path.parent / "record.json").exists()
    except BadInput:
        return True


def _in_groups(content: Any) -> bool:
    return isinstance(content, dict) and all(isinstance(part, dict) for part in content.values())


def read_runs(folder: Folder) -> list[dict]:
    """Read one flat row per run: identity, status, N and C by every convention, D, losses, config and last metrics.

    Config values are named `group.key`, metrics as in the step. Among several runs a damaged one has status "damaged",
    with the reason in `damage`; a single damaged run is BadInput.
    """
    folders = run_folders(folder)
    if folders == [pathlib.Path(folder)]:
        return [read_run(folders[0])]
    links = linked_runs(folders[0].parent)
    rows = [damaged_row(link, describe_link(link)) for link in links] + [read_run_or_damage(path) for path in folders]
    return sorted(rows, key=lambda row: row["name"]) if links else rows


def read_run_or_damage(folder: pathlib.Path) -> dict:
    """Read the row of one run; if it is damaged, a row with that status and the reason in `damage`."""
    try:
        return read_run(folder)
    except BadInput as error:
        return damaged_row(folder, str(error))


def damaged_row(folder: pathlib.Path, damage: str) -> dict[str, Any]:
    """The row of a run that can't be read: its status, and the reason in `damage`."""
    row = dict.fromkeys(ROW_COLUMNS) | {"name": folder.name, "folder": str(folder), "role": ""}
    return row | {"status": DAMAGED_STATUS, "damage": damage}


def describe_damage(folder: pathlib.Path) -> str:
    """Describe what can't be read of a run; "" if all of it can."""
    try:
        read_run(folder), read_metrics(folder), read_layers(folder), read_events(folder)
    except BadInput as error:
        return str(error)
    return ""


def read_run(folder: pathlib.Path) -> dict:
    """Read the row of one run; values that an unfinished run doesn't have yet are None."""
    return make_row(folder, *read_config_and_record(folder))


def has_inactive(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether any run has parameters that a token does not use: experts to which it is not sent."""
    return any(row.get("N_active") not in (None, row.get("N")) for row in rows)


def _size_so_far(folder: pathlib.Path, record: Mapping[str, Any]) -> tuple[int | None, dict[str, float]]:
    """(tokens, FLOPs by convention); for a running run those of its last logged step, newer than its record."""
    tokens, flops = record.get("tokens"), record.get("flops", {})
    logged = _last_step(folder).get("tokens", 0) if record.get("status") == "running" else 0
    if logged <= (tokens or 0) or "flops_per_token" not in record:
        return tokens, flops
    per_token = {("6ND" if name == "6N" else name): v for name, v in record["flops_per_token"].items()}
    more = logged - tokens if flops and tokens else logged  # added to the count before the run went on
    return logged, {name: (flops.get(name, 0) if more < logged else 0) + v * more for name, v in per_token.items()}


def make_row(folder: pathlib.Path, config: Mapping[str, Any], record: Mapping[str, Any]) -> dict:
    """Make the row of a run from its config and record, and from its logs.

    BadInput if config or logs don't bear the record out.
    """
    check_file(folder / "events.jsonl")  # which is not read here
    check_against_folder(folder, config, record)
    params, (tokens, flops) = record.get("params", {}), _size_so_far(folder, record)
    row = {
        "name": folder.name,
        "folder": str(folder),
        "role": config["log"]["role"],
        "status": record.get("status", "starting"),
        "N": params.get("total"),
        "N_active": params.get("active", params.get("total")),
        "N_non_embedding": params.get("non_embedding"),
        "N_kaplan": params.get("kaplan"),
        "N_chinchilla": params.get("chinchilla"),
        "D": tokens,
        "C": flops.get("exact"),
        "C_6ND": flops.get("6ND"),
        "C_chinchilla": flops.get("chinchilla"),
        "val_loss": record.get("val_loss"),
        "bpb": record.get("bpb"),
        **({"bpb_bound": bound} if (bound := record.get("data", {}).get("bpb_bound")) else {}),
        "identity": record.get("identity"),
        "mixed": describe_config_changes(record),
        "spike_score": record.get("spike_score"),
        "clip_share": record.get("clip_share"),
        "rewinds": len(record.get("rewinds", {})),
    }
    row |= record.get("by_source", {}) | {
        key: value for key, value in flatten_keys(config).items() if key not in set_by.FILLED_KEYS
    }
    measured = last_metrics(folder) | _last_layers(folder) | _last_step_scores(folder, record.get("steps"))
    return row | {key: value for key, value in measured.items() if key not in row}


def last_metrics(folder: Folder) -> dict[str, float | None]:
    """Read the metrics of the last logged step by name; {} without a step."""
    return {key: value for key, value in _last_step(folder).items() if key not in ("step", "tokens", "flops", "time")}


def _last_step(folder: Folder) -> dict[str, Any]:
    """Read the line of the last logged step; {} without a step."""
    path = pathlib.Path(folder) / "metrics.jsonl"
    return last_line(path, lambda row: "val_loss" not in row and not describe_mismatch(row, METRICS_SCHEMA)) or {}


def _last_layers(folder: pathlib.Path) -> dict[str, float]:
    """Numbers of the last line of layers.jsonl: the worst layer for LAYER_COLUMNS, and all measures of the batch."""
    path = pathlib.Path(folder) / "layers.jsonl"
    line = last_line(path, lambda row: not describe_mismatch(row, LAYERS_SCHEMA)) or {}
    worst = {key: reduce(line[key]) for key, reduce in LAYER_COLUMNS.items() if isinstance(line.get(key), list)}
    return worst | {key: line[key] for key in batch_keys(line)}


def batch_keys(line: Mapping[str, Any]) -> list[str]:
    """Keys `family/name` in a line of layers.jsonl that measure the batch, not a group of parameters or experts."""
    return [key for key in line if "/" in key and key.partition("/")[2] not in line and not isinstance(line[key], list)]


def rows_by_source(columns: Mapping[str, Any]) -> list[dict]:
    """One row per source, from columns KIND/SOURCE: `source`, `val_loss`, `bpb`, `tokens`, `epochs`; None if absent."""
    names = dict.fromkeys(key.partition("/")[2] for key in columns if key.startswith(("tokens/", "val_loss/")))
    kinds = ("val_loss", "bpb", "tokens", "epochs")
    return [{"source": name} | {kind: columns.get(f"{kind}/{name}") for kind in kinds} for name in names]


def _last_step_scores(folder: pathlib.Path, step: int | None) -> dict[str, float]:
    """`{"brackets_acc": …, "ema_brackets_acc": …}` at the run's last step, to which D and C belong."""
    rows = [row for row in read_evaluations(folder) if row["step"] == step]
    prefixes = ["" if row["weights"] == "trained" else f"{row['weights']}_" for row in rows]
    sets = [(f"{prefix}{row['set']}", row["metrics"]) for prefix, row in zip(prefixes, rows, strict=True)]
    return {f"{name}_{metric}": value for name, metrics in sets for metric, value in metrics.items()}


def describe_config_changes(record: Mapping[str, Any]) -> str | None:
    """Describe config changes during a run, `optim.peak_lr 0.01 -> 0.05 at step 20; …`; None without any."""
    parts = []
    for entry in record.get("mixed", {}).values():
        changed = ", ".join(f"{key} {value}" for key, value in entry["changes"].items())
        parts.append(f"{changed} at step {entry['step']}")
    return "; ".join(parts) or None
