"""The manifest of a checkpoint: a file beside the data with the SHA-256 of every other file.

    checkpoints/120/state/…          the files of Orbax
    checkpoints/120/manifest.json    written last: files, tree, facts of each trial, and a hash of itself
    checkpoints/120.tmp              being written or deleted: never used
    checkpoints/120.damaged          renamed by a fallback; 120.stray: a file or link that was in the way of a step

A folder gets its number by a rename, after everything in it is on disk. So if a numbered folder differs from its
manifest, it was damaged later and not cut short by a crash. Nothing here imports jax, as verification doesn't need it.
"""

import functools
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scalelab.errors import BadInput, WorkFailed
from scalelab.record.jsonfiles import fsync, retry_transient
from scalelab.record.records import read_record
from scalelab.train.checkpoints.hashes import hash_files, split_files
from scalelab.untrusted.documents import parse_json
from scalelab.untrusted.files import read_bytes, replace_file

MOST_MANIFEST_BYTES = 2**28  # 100,000 files of a checkpoint by 2,048 hosts have 20 MB
MANIFEST_FORMAT = 1
HEALTHY = "healthy"
REWIND_STEPS = 100  # the guard goes back by so many steps at least
MANIFEST_NAME = "manifest.json"
# A numbered folder with one of these is a checkpoint: ours, or one written before manifests existed.
STEP_MARKERS = (MANIFEST_NAME, "state", "default", "_CHECKPOINT_METADATA")


class DamagedCheckpoint(WorkFailed):
    """A checkpoint differs from what was saved; the message names the file."""


def list_steps(folder: pathlib.Path) -> list[int]:
    """The steps saved in a checkpoints folder, in order of their numbers, damaged ones included."""
    return sorted(int(path.name) for path in _entries(folder) if _is_step(path))


def list_strays(folder: pathlib.Path) -> list[str]:
    """Names in a checkpoints folder that are not steps, drafts, or renamed steps."""
    return sorted(path.name for path in _entries(folder) if not _is_step(path) and not _is_leftover(path))


def _entries(folder: pathlib.Path) -> list[pathlib.Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _is_leftover(path: pathlib.Path, kinds: tuple[str, ...] = (".tmp", ".damaged", ".stray")) -> bool:
    return path.stem.isdecimal() and path.suffix in kinds


def _is_step(path: pathlib.Path) -> bool:
    return (
        path.name.isdecimal()
        and path.name == str(int(path.name))
        and any(os.path.lexists(path / s) for s in STEP_MARKERS)
    )


def list_leftovers(folder: pathlib.Path) -> list[pathlib.Path]:
    """Drafts of interrupted saves, and half-deleted steps."""
    return [path for path in _entries(folder) if _is_leftover(path, (".tmp",))]


def prepare_draft(draft: pathlib.Path, warn: Callable[[str], None]) -> None:
    """Make the folder of a save: old drafts are deleted; what is in the way of its step is renamed, and `warn` told."""
    draft.parent.mkdir(parents=True, exist_ok=True)
    for leftover in list_leftovers(draft.parent):
        remove_path(leftover)
    if os.path.lexists(stray := draft.with_suffix("")):
        new_path = set_aside(stray, "stray")
        warn(f"{stray} is where step {stray.name} is saved, but not a step of this run: renamed to {new_path.name}")
    retry_transient(draft.mkdir)


def list_step_files(step_folder: pathlib.Path) -> list[str]:
    """Every file of a step except the manifest, relative to its folder, sorted."""
    paths = []
    for place, folders, names in os.walk(step_folder):
        # A link to a folder is listed as a file: it is not followed, and no manifest contains one.
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        paths += [os.path.relpath(os.path.join(place, name), step_folder) for name in names + links]
    return sorted(path.replace(os.sep, "/") for path in paths if path != MANIFEST_NAME)


def write_manifest(
    draft: pathlib.Path,
    step: int,
    files: Mapping[str, Any],
    tree: Mapping[str, str],
    facts: Mapping[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """Write the manifest of `draft`; it and all folders are on disk when this returns. Returns the manifest.

    `files`: {name: {"bytes", "sha256"}}, of `hashes`; `tree`: {leaf name: "dtype[shape]"}; `facts`: {trial: identity,
    config, data, versions, …}; `more`: further entries.
    """
    content = {
        "format": MANIFEST_FORMAT,
        "step": step,
        **more,
        "files": files,
        "tree": tree,
        "tree_sha256": _sha256(tree),
        "facts": facts,
    }
    content = json.loads(_canonical(content))  # the content as a reader gets it
    content["sha256"] = _sha256(content)
    retry_transient(functools.partial(replace_file, draft / MANIFEST_NAME, _canonical(content), sync=True))
    for place, _, _ in os.walk(draft):
        fsync(place)
    return content


def _canonical(content: Any) -> str:
    return json.dumps(content, indent=1, sort_keys=True, default=float) + "\n"


def _sha256(content: Any) -> str:
    return hashlib.sha256(_canonical(content).encode()).hexdigest()


def read_manifest(step_folder: pathlib.Path) -> dict[str, Any]:
    """Read the manifest of a step. DamagedCheckpoint if it is missing or differs in any bit from what was written."""
    path = step_folder / MANIFEST_NAME
    try:
        text = retry_transient(lambda: read_bytes(path, MOST_MANIFEST_BYTES)).decode()
        content = parse_json(text)
        claimed = content["sha256"]
        body = {key: value for key, value in content.items() if key != "sha256"}
    except FileNotFoundError:
        raise DamagedCheckpoint(f"{path} is missing: lost, or saved by a scalelab version without manifests") from None
    except OSError as error:
        raise DamagedCheckpoint(f"{path} can't be read: {error.strerror}") from None
    except BadInput as refusal:  # a link, a pipe
        raise DamagedCheckpoint(str(refusal)) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedCheckpoint(f"{path} is damaged: not a manifest") from None
    if claimed != _sha256(body) or text != _canonical(content):  # the text too: a flipped blank changes no value
        raise DamagedCheckpoint(f"{path} is damaged: its content doesn't match its own hash")
    if body["format"] != MANIFEST_FORMAT:
        raise DamagedCheckpoint(
            f"{path} has format {body['format']}, this scalelab reads {MANIFEST_FORMAT}: use the version that wrote it"
        )
    return content


def find_step_problems(step_folder: pathlib.Path, contents: bool = True) -> list[str]:
    """Differences from a step's manifest, one line per file ([]: intact). `contents=False`: check sizes only."""
    try:
        manifest = read_manifest(step_folder)
    except DamagedCheckpoint as error:
        return [str(error)]
    recorded, present = manifest["files"], set(list_step_files(step_folder))
    lines = [f"{step_folder / name} is missing" for name in recorded if name not in present]
    lines += [f"{step_folder / name} is not in the manifest" for name in sorted(present - set(recorded))]
    if str(manifest["step"]) != step_folder.name.split(".")[0]:
        lines.append(f"{step_folder} holds step {manifest['step']}: was the folder renamed?")
    sizes = {name: _size(step_folder / name) for name in recorded if name in present}
    lines += [
        f"{step_folder / n} has {s} bytes, saved {recorded[n]['bytes']}"
        for n, s in sizes.items()
        if s != recorded[n]["bytes"]
    ]
    if contents:
        same_size = [name for name, size in sizes.items() if size == recorded[name]["bytes"]]
        lines += _find_changed(step_folder, recorded, same_size)
    return lines


def find_changed_files(step_folder: pathlib.Path, process: int, processes: int) -> list[str]:
    """Files whose bytes changed, one line each: those of this process's share of the step's files."""
    try:
        recorded = read_manifest(step_folder)["files"]
    except DamagedCheckpoint as error:
        return [str(error)]
    sizes = {name: entry["bytes"] for name, entry in recorded.items()}
    return _find_changed(step_folder, recorded, split_files(sizes, processes)[process])


def _find_changed(step_folder: pathlib.Path, recorded: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    lines, hashes = [], hash_files(step_folder, names)
    for name in names:
        if "error" in hashes[name]:
            lines.append(f"{step_folder / name} can't be read: {hashes[name]['error']}")
        elif hashes[name] != recorded[name]:
            now, saved = (entries[name]["sha256"][:12] for entries in (hashes, recorded))
            lines.append(f"{step_folder / name} is damaged: SHA-256 {now}…, saved {saved}…")
    return lines


def _size(path: pathlib.Path) -> int | None:
    try:
        return path.lstat().st_size
    except OSError:
        return None


def prune_steps(folder: pathlib.Path, keep_last: int, keep_every: int, rewinds: bool = False) -> list[int]:
    """Delete old steps: all but the newest `keep_last`, multiples of `keep_every` and each trial's newest healthy one.

    With `rewinds` also the healthy one before, and the newest that is REWIND_STEPS older than the newest healthy one.

    Only steps that look intact are counted or deleted: if damaged steps counted among the newest, the last good one
    could be deleted. Returns the deleted steps.
    """
    intact = [step for step in list_steps(folder) if not find_step_problems(folder / str(step), contents=False)]
    newest = intact[-keep_last:]
    rest = [step for step in intact if step not in newest and not (keep_every and step % keep_every == 0)]
    surplus = sorted(set(rest) - (_newest_healthy(folder, intact, rewinds) if rest else set()))
    for step in surplus:
        draft = folder / f"{step}.tmp"
        rename_with_retry(folder / str(step), draft)  # atomic: a crash while deleting leaves no half step
        remove_path(draft)
    return surplus


def _newest_healthy(folder: pathlib.Path, steps: list[int], rewinds: bool) -> set[int]:
    healthy: dict[str, list[int]] = {}
    for step in steps:
        content = read_manifest(folder / str(step))
        health = content.get("health") or dict.fromkeys(content["facts"], HEALTHY)  # older manifests have no health
        for trial, verdict in health.items():
            healthy.setdefault(trial, []).extend([step] if verdict == HEALTHY else [])
    newest = {step for each in healthy.values() for step in each[-2 if rewinds else -1 :]}
    older = [[step for step in each if step <= each[-1] - REWIND_STEPS] for each in healthy.values() if each]
    return newest | {each[-1] for each in older if each and rewinds}


def set_aside(path: pathlib.Path, suffix: str = "damaged") -> pathlib.Path:
    """Rename a step's folder (or what is in its place) to free its number; returns the new path."""
    new_path = path.with_name(f"{path.name}.{suffix}")
    remove_path(new_path)
    rename_with_retry(path, new_path)
    fsync(path.parent)
    return new_path


def rename_with_retry(old: pathlib.Path, new: pathlib.Path) -> None:
    """Rename, and retry after a transient error, which may have come after the rename was done."""
    retry_transient(lambda: old.rename(new) if os.path.lexists(old) or not os.path.lexists(new) else new)


def remove_path(path: pathlib.Path) -> None:
    """Remove a folder with its content, a file, or a link (not its target); do nothing if the path is absent."""
    if path.is_symlink() or path.is_file():
        retry_transient(path.unlink)
    elif os.path.lexists(path):
        retry_transient(lambda: shutil.rmtree(path))


def list_checkpoint_places(folder: pathlib.Path) -> list[tuple[pathlib.Path, str]]:
    """[(checkpoints folder, the run's name in it)]: the run's own, its pack's, and those of its former packs.

    The record names a new pack before this has a checkpoint. After a kill in between, only the former pack has the run.
    """
    pack = read_record(folder).get("pack")
    packs = {pack["checkpoints"]: pack["trial"]} | pack.get("former", {}) if pack else {}
    return [(folder / "checkpoints", "run"), *((folder / place, trial) for place, trial in packs.items())]


def add_former_packs(pack: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Add the former packs of a trial to `pack`, the entry of a run's record; `before` is the present entry."""
    places = {before["checkpoints"]: before["trial"]} | before.get("former", {})
    former = {place: trial for place, trial in places.items() if place != pack["checkpoints"]}
    return pack | {"former": former} if former else pack


def find_saved_steps(folder: pathlib.Path) -> dict[int, tuple[pathlib.Path, str]]:
    """`{step: (checkpoints folder, the run's name in it)}` for every saved step of a run."""
    return {step: (place, name) for place, name in list_checkpoint_places(folder)[::-1] for step in list_steps(place)}


def find_checkpoint_folders(folder: pathlib.Path) -> list[pathlib.Path]:
    """Every checkpoints folder of a run, pack, sweep or study, or the folder itself. BadInput if there is none."""
    candidates = [folder / "checkpoints", *folder.glob("packs/*/checkpoints"), *folder.glob("runs/*/checkpoints")]
    if pack := read_record(folder).get("pack"):
        candidates.append(folder / pack["checkpoints"])
    folders = [path.resolve() if ".." in path.parts else path for path in candidates if path.is_dir()]
    if not folders and folder.is_dir() and (folder.name == "checkpoints" or list_steps(folder)):
        folders = [folder]
    if not folders:
        reason = "no such folder" if not folder.exists() else "no checkpoints/ in it, in its packs/* or in its runs/*"
        raise BadInput(f"{str(folder)!r} holds no checkpoints: {reason}")
    return sorted(folders)
