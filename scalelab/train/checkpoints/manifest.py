"""What makes a checkpoint trustworthy: a manifest beside the data with the SHA-256 of every file.

    checkpoints/120/state/…          what Orbax wrote
    checkpoints/120/manifest.json    written last: files, tree, facts of each trial, and a hash of itself
    checkpoints/120.tmp              being written or being deleted: worth nothing
    checkpoints/120.damaged          set aside by a fallback; 120.stray: a file or link that stood where a step was to go

A folder gets its number by a rename, after everything in it is on disk. So a numbered folder that its manifest
contradicts was damaged later, never cut short by a crash. Nothing here imports jax: verifying needs none.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any

from scalelab.errors import BadInput, WorkFailed
from scalelab.jsonfiles import fsync, retry_transient
from scalelab.records import read_record

MANIFEST_FORMAT = 1
HEALTHY = "healthy"
MANIFEST_NAME = "manifest.json"
# What shows that a numbered folder was meant as a checkpoint: ours, and those written before there were manifests.
STEP_MARKERS = (MANIFEST_NAME, "state", "default", "_CHECKPOINT_METADATA")


class DamagedCheckpoint(WorkFailed):
    """A checkpoint is not what was saved; the message names the file."""


def list_steps(folder: pathlib.Path) -> list[int]:
    """The steps saved in a checkpoints folder, in order, damaged ones included; by name, never by date."""
    found = [path for path in _entries(folder) if _is_step(path)]
    return sorted(int(path.name) for path in found)


def list_strays(folder: pathlib.Path) -> list[str]:
    """Names in a checkpoints folder that are neither steps, nor drafts, nor steps set aside."""
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
    """Drafts of saves that were cut short and steps half deleted."""
    return [path for path in _entries(folder) if _is_leftover(path, (".tmp",))]


def list_step_files(step_folder: pathlib.Path) -> list[str]:
    """Every file of a step but the manifest, relative to its folder, sorted."""
    found = []
    for place, folders, names in os.walk(step_folder):
        # A link to a folder is listed as a file: it is not followed, and no manifest ever names one.
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        found += [os.path.relpath(os.path.join(place, name), step_folder) for name in names + links]
    return sorted(name.replace(os.sep, "/") for name in found if name != MANIFEST_NAME)


def hash_files(step_folder: pathlib.Path, names: list[str], sync: bool = False) -> dict[str, dict[str, Any]]:
    """`{name: {"bytes", "sha256"}}`, several files at once (hashlib releases the GIL); with `sync`, each is on disk after.

    A file that can't be read has an "error" instead.
    """

    def one(name: str) -> dict[str, Any]:
        def digest() -> dict[str, Any]:
            with open(step_folder / name, "rb") as file:
                if sync:
                    os.fsync(file.fileno())
                sha = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
                return {"bytes": file.tell(), "sha256": sha}

        try:
            return retry_transient(digest)
        except OSError as error:
            if sync:
                raise
            return {"error": error.strerror or str(error)}

    with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(names, pool.map(one, names), strict=True))


def write_manifest(
    draft: pathlib.Path, step: int, tree: dict[str, str], facts: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """Hash what stands in `draft` and write its manifest, all of it on disk when this returns. Returns the manifest.

    `tree`: every leaf's name -> "dtype[shape]"; `facts`: trial -> what it was trained under.
    """
    content = {
        "format": MANIFEST_FORMAT,
        "step": step,
        **more,
        "files": hash_files(draft, list_step_files(draft), sync=True),
        "tree": tree,
        "tree_sha256": _sha256(tree),
        "facts": facts,
    }
    content = json.loads(_canonical(content))  # what a reader will see
    content["sha256"] = _sha256(content)

    def put() -> None:
        with open(draft / MANIFEST_NAME, "w") as file:
            file.write(_canonical(content))
            file.flush()
            os.fsync(file.fileno())

    retry_transient(put)
    for place, _, _ in os.walk(draft):
        fsync(place)
    return content


def _canonical(content: Any) -> str:
    return json.dumps(content, indent=1, sort_keys=True, default=float) + "\n"


def _sha256(content: Any) -> str:
    return hashlib.sha256(_canonical(content).encode()).hexdigest()


def read_manifest(step_folder: pathlib.Path) -> dict[str, Any]:
    """The manifest of a step, if it is what was written to the last bit. Raises Damaged."""
    path = step_folder / MANIFEST_NAME
    try:
        text = retry_transient(path.read_bytes).decode()
        content = json.loads(text)
        claimed = content["sha256"]
        body = {key: value for key, value in content.items() if key != "sha256"}
    except FileNotFoundError:
        raise DamagedCheckpoint(
            f"{path} is missing: lost, or saved by a scalelab before there were manifests"
        ) from None
    except OSError as error:
        raise DamagedCheckpoint(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedCheckpoint(f"{path} is damaged: not a manifest") from None
    if claimed != _sha256(body) or text != _canonical(content):  # the text too: a flip in blanks changes no value
        raise DamagedCheckpoint(f"{path} is damaged: its content is not what its own hash says")
    if body["format"] != MANIFEST_FORMAT:
        raise DamagedCheckpoint(
            f"{path} has format {body['format']}, this scalelab reads {MANIFEST_FORMAT}: use the version that wrote it"
        )
    return content


def find_step_problems(step_folder: pathlib.Path, contents: bool = True) -> list[str]:
    """What contradicts a step's manifest, a line a file ([]: intact). `contents=False`: sizes only, no byte is read."""
    try:
        manifest = read_manifest(step_folder)
    except DamagedCheckpoint as error:
        return [str(error)]
    said, there = manifest["files"], set(list_step_files(step_folder))
    lines = [f"{step_folder / name} is missing" for name in said if name not in there]
    lines += [f"{step_folder / name} is not in the manifest" for name in sorted(there - set(said))]
    if str(manifest["step"]) != step_folder.name.split(".")[0]:
        lines.append(f"{step_folder} holds step {manifest['step']}: was the folder renamed?")
    sizes = {name: _size(step_folder / name) for name in said if name in there}
    lines += [
        f"{step_folder / n} has {s} bytes, saved {said[n]['bytes']}" for n, s in sizes.items() if s != said[n]["bytes"]
    ]
    if contents:
        same_size = [name for name, size in sizes.items() if size == said[name]["bytes"]]
        found = hash_files(step_folder, same_size)
        for name in same_size:
            if "error" in found[name]:
                lines.append(f"{step_folder / name} can't be read: {found[name]['error']}")
            elif found[name] != said[name]:
                lines.append(
                    f"{step_folder / name} is damaged: SHA-256 {found[name]['sha256'][:12]}…, saved {said[name]['sha256'][:12]}…"
                )
    return lines


def _size(path: pathlib.Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def prune_steps(folder: pathlib.Path, keep_last: int, keep_every: int) -> list[int]:
    """Delete old steps: all but the newest `keep_last`, multiples of `keep_every` and each trial's newest healthy one.

    Only steps that look intact count and only they are deleted: were damaged ones counted among the newest, the last
    good one could be deleted for their sake. Returns what was deleted.
    """
    sound = [step for step in list_steps(folder) if not find_step_problems(folder / str(step), contents=False)]
    newest = sound[-keep_last:]
    rest = [step for step in sound if step not in newest and not (keep_every and step % keep_every == 0)]
    surplus = sorted(set(rest) - (_newest_healthy(folder, sound) if rest else set()))
    for step in surplus:
        draft = folder / f"{step}.tmp"
        rename_with_retry(folder / str(step), draft)  # gone in one stroke: a crash in between leaves no half of a step
        remove_path(draft)
    return surplus


def _newest_healthy(folder: pathlib.Path, sound: list[int]) -> set[int]:
    newest: dict[str, int] = {}
    for step in sound:
        content = read_manifest(folder / str(step))
        health = content.get("health") or dict.fromkeys(content["facts"], HEALTHY)  # older ones don't say
        newest |= {trial: step for trial, verdict in health.items() if verdict == HEALTHY}
    return set(newest.values())


def set_aside(path: pathlib.Path, suffix: str = "damaged") -> pathlib.Path:
    """Rename what has a step's number, so that this is free again; it stays for whoever wants to look."""
    goal = path.with_name(f"{path.name}.{suffix}")
    remove_path(goal)
    rename_with_retry(path, goal)
    fsync(path.parent)
    return goal


def rename_with_retry(old: pathlib.Path, new: pathlib.Path) -> None:
    """Rename, again after a passing error: which may have come after it was done."""
    retry_transient(lambda: old.rename(new) if os.path.lexists(old) or not os.path.lexists(new) else new)


def remove_path(path: pathlib.Path) -> None:
    """Remove a folder with all in it, a file, or a link and not what it leads to; nothing where it is absent."""
    if path.is_symlink() or path.is_file():
        retry_transient(path.unlink)
    elif os.path.lexists(path):
        retry_transient(lambda: shutil.rmtree(path))


def list_checkpoint_places(folder: pathlib.Path) -> list[tuple[pathlib.Path, str]]:
    """(checkpoints folder, name in it) of a run: its own, its pack's where it has one, and those of the packs before it.

    The record names a new pack before that has a checkpoint: killed in between, the run is only in the former one's.
    """
    pack = read_record(folder).get("pack")
    packs = {pack["checkpoints"]: pack["trial"]} | pack.get("former", {}) if pack else {}
    return [(folder / "checkpoints", "run"), *((folder / place, trial) for place, trial in packs.items())]


def add_former_packs(pack: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """`pack` of a run's record, with the packs that its trial was in earlier; `before` is what its record says until now."""
    places = {before["checkpoints"]: before["trial"]} | before.get("former", {})
    former = {place: trial for place, trial in places.items() if place != pack["checkpoints"]}
    return pack | {"former": former} if former else pack


def find_saved_steps(folder: pathlib.Path) -> dict[int, tuple[pathlib.Path, str]]:
    """`{step: (checkpoints folder, the run's name in it)}` for every step of a run that is kept."""
    return {step: (place, name) for place, name in list_checkpoint_places(folder)[::-1] for step in list_steps(place)}


def find_checkpoint_folders(folder: pathlib.Path) -> list[pathlib.Path]:
    """Every checkpoints folder of a run, pack, sweep or study, or the folder itself. BadInput where there is none."""
    candidates = [folder / "checkpoints", *folder.glob("packs/*/checkpoints"), *folder.glob("runs/*/checkpoints")]
    if pack := read_record(folder).get("pack"):
        candidates.append(folder / pack["checkpoints"])
    found = [path.resolve() if ".." in path.parts else path for path in candidates if path.is_dir()]
    if not found and folder.is_dir() and (folder.name == "checkpoints" or list_steps(folder)):
        found = [folder]
    if not found:
        what = "no such folder" if not folder.exists() else "no checkpoints/ in it, in its packs/* or in its runs/*"
        raise BadInput(f"{str(folder)!r} holds no checkpoints: {what}")
    return sorted(found)
