"""Every file of a run's folder held against the others: what `scalelab checkpoint verify --all` prints.

What a file says is believed where another bears it out: the manifests of the checkpoints know config, data and logs as
of their steps, the logs the record's numbers. Nothing here imports jax or runs the user's code.
"""

import functools
import hashlib
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scalelab import set_by
from scalelab.errors import BadInput
from scalelab.record import listing, records
from scalelab.record.jsonlines import numbered_lines
from scalelab.train.checkpoints import logs, manifest
from scalelab.train.checkpoints.manifest import DamagedCheckpoint
from scalelab.untrusted.files import read_bytes
from scalelab.untrusted.paths import check_name

CODE_LINE = "own code"  # in the place of a file's name
OPTIONAL_LOGS: dict[str, Mapping[str, Any]] = {
    "layers.jsonl": records.LAYERS_SCHEMA,
    "evaluations.jsonl": records.EVALUATION_SCHEMA,
}
PAST_FACTS = ("rewinds", "changes_by_hand")  # that a record may repeat


class Saved(NamedTuple):
    """What the checkpoints of a run say: the facts of the last sound one, its step, and lines that logs have lost."""

    step: int
    facts: Mapping[str, Any]
    lost: Mapping[str, str]  # file name -> what is wrong with it


def verify_run(folder: pathlib.Path) -> dict[str, list[str]]:
    """{file: what is wrong with it, [] if it is sound} of every file of the run in `folder` that holds facts of it.

    BadInput if the folder is not a run's.
    """
    (folder,) = listing.run_folders(folder)
    saved = _read_saved(folder)
    config = _try(lambda: records.read_json(folder / "config.json", records.CONFIG_SCHEMA))
    record = _try(lambda: records.read_record(folder))
    files = {
        "config.json": [config] if isinstance(config, str) else [],
        "record.json": [record] if isinstance(record, str) else [],
        "metrics.jsonl": _find_log_problems(folder, "metrics.jsonl", records.METRICS_SCHEMA, saved),
    }
    for name, schema in OPTIONAL_LOGS.items():
        if (folder / name).exists() or name in saved.lost:
            files[name] = _find_log_problems(folder, name, schema, saved)
    files["events.jsonl"] = _find_log_problems(folder, "events.jsonl", records.EVENT_SCHEMA, saved)
    if isinstance(config, dict) and isinstance(record, dict):
        sound = _try(lambda: records.check_against_folder(folder, config, record))
        if not record and (saved.facts or listing.last_metrics(folder)):
            sound = f"{folder / 'record.json'} is missing, and the run has taken steps"
        files["record.json"] += [sound] if isinstance(sound, str) else find_false_record(config, record, saved)
        files["config.json"] += find_false_config(config, record, saved)
        if record.get("status", "imported") != "imported" and not (folder / "events.jsonl").exists():
            files["events.jsonl"] = [f"{folder / 'events.jsonl'} is missing"]
        files |= _verify_own_code(record, saved)
    for step, (place, _) in sorted(manifest.find_saved_steps(folder).items() if isinstance(record, dict) else ()):
        files[os.path.relpath(place / str(step), folder)] = manifest.find_step_problems(place / str(step))
    return files


def _try(read: Callable[[], Any]) -> Any:
    """What `read` returns; the text of its error if the file is damaged."""
    try:
        return read()
    except (BadInput, DamagedCheckpoint) as error:
        return str(error)


def _read_saved(folder: pathlib.Path) -> Saved:
    step, facts, lost = 0, {}, {}  # type: int, Mapping[str, Any], dict[str, str]
    places = _try(lambda: manifest.find_saved_steps(folder))
    for number, (place, name) in sorted(places.items() if isinstance(places, dict) else ()):
        content = _try(functools.partial(manifest.read_manifest, place / str(number)))
        if not isinstance(content, dict) or name not in content["facts"]:
            continue
        step, facts = number, content["facts"][name]
        lines = logs.find_lost_logs(place, content)
        lost |= {path.name: text for path, text in lines if path.parent.resolve() == folder.resolve()}
    return Saved(step, facts, lost)


def _find_log_problems(folder: pathlib.Path, name: str, schema: Mapping[str, Any], saved: Saved) -> list[str]:
    damaged = _try(lambda: [number for number, _, row in numbered_lines(folder / name, schema) if row is None])
    if isinstance(damaged, str):
        return [damaged]
    lines = f"lines {', '.join(map(str, damaged[:5]))} can't be read" if damaged else ""
    return [*filter(None, (lines, saved.lost.get(name)))]


def find_false_config(config: Mapping[str, Any], record: Mapping[str, Any], saved: Saved) -> list[str]:
    """Values of config.json that are not those of a done run's last checkpoint, which its last steps were taken under.

    Of a run that goes on, settings may have changed since; what decides its steps is held by its identity.
    """
    if record.get("status") != "done" or saved.step != record.get("steps"):
        return []
    stored, trained = records.flatten_keys(config), records.flatten_keys(saved.facts["config"])
    changed = [key for key in {**stored, **trained} if stored.get(key) != trained.get(key)]
    return [
        f"{key} is {stored.get(key)!r}, and the checkpoint of step {saved.step} was saved under {trained.get(key)!r}"
        for key in changed[:1]
    ]


def find_false_record(config: Mapping[str, Any], record: Mapping[str, Any], saved: Saved) -> list[str]:
    """What a record says of identity, data, changes and origins that the last checkpoint or the config contradicts."""
    facts, step = saved.facts, saved.step
    pairs = {}
    if facts and saved.step == record.get("steps"):
        data = record.get("data", {})
        pairs = {f"data.{key}": (data.get(key), value) for key, value in facts["data"].items()}
        pairs |= {"identity": (record.get("identity"), facts["identity"])}
        pairs |= {"mixed": (record.get("mixed", {}), facts.get("mixed", {}))}
        pairs |= {key: (record[key], facts.get(key, {})) for key in PAST_FACTS if key in record}
        pairs |= {"own_code": (record.get("own_code") or {}, facts.get("own_code") or {})}
    wrong = [
        f"{key} is {_short(now)}, and the checkpoint of step {step} was saved under {_short(then)}"
        for key, (now, then) in pairs.items()
        if now != then
    ]
    return [*wrong, *_find_false_origins(config, record)][:1]


def _find_false_origins(config: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """Who set a value by the record, where the notes of config.json name another; of a done run both were written."""
    values = records.flatten_keys(config)
    notes = set_by.parse_origin_notes(str(values.get(set_by.NOTES_KEY, "")))
    origins = record.get("set_by", {}) if record.get("status") == "done" else {}
    return [
        f"set_by has {key} by {_short(origins[key])}, and config.json by {_short(who)}"
        for key, (who, value) in notes.items()
        if key in origins and values.get(key) == value and origins[key] != who
    ]


def _verify_own_code(record: Mapping[str, Any], saved: Saved) -> dict[str, list[str]]:
    """{CODE_LINE: files of the users' functions that are others here than those the run was trained with}.

    {} if it has no own code, or none that is here: in the current folder, or where Python finds modules.
    """
    codes = record.get("own_code") or saved.facts.get("own_code") or {}
    files = {name: sha for code in codes.values() for name, sha in code.get("files", {}).items()}
    folders = [pathlib.Path(folder or ".") for folder in ("", *sys.path)]
    plain = [check_name(name, "own_code") for name in files]
    places = {name: next((p for f in folders if (p := f / name).is_file()), None) for name in plain}
    here = {name: place for name, place in places.items() if place}
    others = [name for name, place in here.items() if _sha256(place) != files[name]]
    problems = [f"{here[n]} is not the file that the run was trained with (SHA-256 {files[n][:10]}…)" for n in others]
    return {CODE_LINE: problems} if here else {}


def _sha256(path: pathlib.Path) -> str:
    content = _try(lambda: read_bytes(path, follow=True))
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else ""


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
