"""Write foreign runs as run folders of ours: config, record, metrics and a line of the logbook, without weights.

A run is written into a draft beside its place and renamed, so that a folder is whole or absent.
"""

import hashlib
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scalelab.errors import BadInput
from scalelab.foreign.convert import Converted, convert_run, metrics_text
from scalelab.foreign.find import find_runs, read_found
from scalelab.foreign.names import FIELDS
from scalelab.foreign.run import ForeignRun
from scalelab.record import records
from scalelab.untrusted.files import open_file, replace_file
from scalelab.untrusted.paths import refuse_link
from scalelab.untrusted.text import as_utf8, printable

KNOWN = (*FIELDS, "N")  # fields that --columns may name
FIELD_ALIASES = {"D": "tokens", "C": "flops", "loss": "val_loss"}  # the names of `scalelab fit --columns`
ALL_FIELDS = (*KNOWN, *FIELD_ALIASES)
LONGEST_NAME = 100
HASHED_BYTES = 2**20


class Imported(NamedTuple):
    """What was written: run folders, a line on each of what was taken for what, notes, and why others were left out."""

    folder: pathlib.Path
    runs: list[pathlib.Path]
    lines: list[str]
    notes: list[str]
    left_out: list[str]


def check_fields(columns: Mapping[str, str]) -> dict[str, str]:
    """`columns` under the names of logged fields. BadInput for a field that is not one."""
    fields = {FIELD_ALIASES.get(field, field): column for field, column in columns.items()}
    for field in fields:
        if field not in KNOWN:
            raise BadInput(f"--columns={field}=…: fields of a run are {', '.join(KNOWN)}")
    return fields


def import_source(
    source: pathlib.Path, place: pathlib.Path, columns: Mapping[str, str], report: Callable[[str, int, int], None]
) -> Imported:
    """Write the runs of a source into `place`: the run itself if there is one, else each into `place`/runs.

    Runs that can't be read are left out, with the reason. BadInput if none can, or if a folder holds another run.
    """
    fields = check_fields(columns)
    found = find_runs(source)
    done = Imported(place, [], [], [], [])
    taken: set[str] = set()
    digests: dict[tuple[pathlib.Path, ...], str] = {}  # one database may hold a thousand runs
    first_refusal: BadInput | None = None
    for number, each in enumerate(found, 1):
        report(each.name, number, len(found))
        try:
            runs = read_found(each)
        except BadInput as refusal:
            first_refusal = first_refusal or refusal
            done.left_out.append(str(refusal))
            continue
        files = tuple(runs[0].files)
        digest = digests.get(files) or digests.setdefault(files, _hash_files(files))
        several = len(found) > 1 or len(runs) > 1
        for run in runs:
            folder = place / "runs" / _folder_name(run.name, taken) if several else place
            try:
                converted = convert_run(run, fields)
            except BadInput as refusal:
                first_refusal = first_refusal or refusal
                done.left_out.append(str(refusal))
                continue
            _write_run(folder, converted, run, digest)
            done.runs.append(folder)
            done.lines.append(converted.line)
            done.notes.extend(f"{run.name}: {note}" for note in converted.notes)
    if not done.runs:
        raise first_refusal or BadInput(f"{str(source)!r} holds no run")
    return done


def _folder_name(name: str, taken: set[str]) -> str:
    """A plain name of a folder for a run, that no other run of the source has."""
    plain = plain_folder_name(name)
    unique, number = plain, 2
    while unique in taken:
        unique, number = f"{plain}-{number}", number + 1
    taken.add(unique)
    return unique


def _hash_files(files: Sequence[pathlib.Path]) -> str:
    """The SHA-256 over a run's files, each with its name."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode(errors="surrogateescape") + b"\0")
        with open_file(path, follow=True) as file:
            while block := file.read(HASHED_BYTES):
                digest.update(block)
    return digest.hexdigest()


def _write_run(folder: pathlib.Path, converted: Converted, run: ForeignRun, digest: str) -> None:
    """Write a run's folder. BadInput if another run lies there; the same one of the same files is left as it is."""
    record = converted.record
    record["source"] |= {
        "sha256": digest,
        "files": [printable(path.name) for path in run.files][:100],
        "path": as_utf8(str(run.files[0].absolute())),
    }
    refuse_link(folder)
    if folder.exists() and any(folder.iterdir()):
        if _is_same(folder, record):
            return
        raise BadInput(f"{folder} holds something else: import into another --workdir, or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        records.write_json(draft / "config.json", converted.config)
        records.write_json(draft / "record.json", record)
        replace_file(draft / "metrics.jsonl", metrics_text(converted))
        _copy_layers(run.files[0], draft)
        notes = "; ".join([converted.line, *converted.notes])
        records.write_event(draft, "imported", record["steps"], notes)
        if folder.exists():
            folder.rmdir()
        os.replace(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _copy_layers(log: pathlib.Path, draft: pathlib.Path) -> None:
    """Copy the measures by layer of a run of ours that lost its config: layers.jsonl beside its metrics.jsonl."""
    path = log.with_name("layers.jsonl")
    if log.name == "metrics.jsonl" and path.is_file() and not path.is_symlink():
        records.append_json_lines(draft / path.name, records.read_json_lines(path, records.LAYERS_SCHEMA))


def _is_same(folder: pathlib.Path, record: Mapping[str, Any]) -> bool:
    try:
        old = records.read_record(folder).get("source", {})
    except BadInput:
        return False
    return all(old.get(key) == record["source"][key] for key in ("sha256", "taken"))


def plain_folder_name(name: str) -> str:
    """The name with what is not a letter, a digit or one of .=+,@- as a hyphen."""
    return (re.sub(r"[^\w.=+,@-]+", "-", as_utf8(name)).strip(".-") or "run")[:LONGEST_NAME]
