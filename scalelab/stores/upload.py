"""Upload a local folder as immutable objects: files in parts of bounded size, checkpoints in Orbax's own files.

A file that grew gets a new last part; the other parts keep their objects. A checkpoint's objects have the names of its
files, below a folder with the hash of its manifest, so that Orbax can read it there. New objects carry the process's
mark, so a process that lost the lease can't touch another's.
"""

import contextlib
import dataclasses
import errno
import hashlib
import os
import pathlib
import shutil
from typing import Any

from scalelab.errors import BadInput
from scalelab.stores import client
from scalelab.stores.client import Place
from scalelab.stores.formats import STEP, Files, Parts
from scalelab.untrusted.documents import parse_json
from scalelab.untrusted.files import open_file, read_bytes
from scalelab.untrusted.paths import check_name

PART_BYTES = 2**23
MANIFEST = "manifest.json"


@dataclasses.dataclass
class Uploader:
    """Uploads the changes in `folder` since the last time. `held`: a folder for hard links, on the same disk.

    `present`: files of the store's index when the lease is taken; `mark`: part of the names of new objects.
    """

    place: Place
    folder: pathlib.Path
    held: pathlib.Path
    mark: str
    present: Files
    damaged: list[str] = dataclasses.field(default_factory=list)  # checkpoints that differ from their manifests
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)  # {path: why it is not uploaded}
    made: set[str] = dataclasses.field(default_factory=set)  # objects made since `sweep`
    unchanged: dict[str, tuple[Any, Parts]] = dataclasses.field(default_factory=dict)  # path -> (signature, parts)
    steps: dict[str, tuple[str, Files]] = dataclasses.field(default_factory=dict)  # step -> (manifest's SHA-256, files)
    objects: dict[tuple[str, int, str], str] = dataclasses.field(default_factory=dict)  # (path, start, SHA-256) -> name

    def __post_init__(self) -> None:
        for path, parts in self.present.items():
            step = STEP.match(path)
            if step:
                manifest = self.present.get(f"{step[0]}/{MANIFEST}") or [("", 0, "")]
                self.steps.setdefault(step[0], (manifest[0][2], {}))[1][path] = parts
            start = 0
            for name, size, sha in () if step else parts:
                self.objects[path, start, sha] = name
                start += size

    def upload(self) -> Files:
        """Upload files that the store lacks; returns all files. Checkpoints come first: their log lines are on disk."""
        steps, _ = list_folder(self.folder)
        files: Files = {}
        for step in steps:
            files |= self._upload_step(step)
        _, paths = list_folder(self.folder)
        paths = [path for path in paths if self._has_plain_name(path)]
        uploaded = client.in_parallel(self._upload_file, paths)
        return files | {path: parts for path, parts in zip(paths, uploaded, strict=True) if parts is not None}

    def _has_plain_name(self, path: str) -> bool:
        """Whether readers accept this name; otherwise the file is left out."""
        try:
            check_name(path, str(self.folder))
        except BadInput as refusal:
            self.left_out[path] = str(refusal)
            return False
        return True

    def _upload_file(self, path: str) -> Parts | None:
        """Upload a file's new parts; returns all its parts, or None if it is gone, or a link, a pipe, …."""
        try:
            with open_file(self.folder / path) as file:
                signature = _signature(file.fileno())
                if path in self.unchanged and self.unchanged[path][0] == signature:
                    return self.unchanged[path][1]
                parts: Parts = []
                for start in range(0, signature[0], PART_BYTES):
                    data = file.read(min(PART_BYTES, signature[0] - start))
                    sha = hashlib.sha256(data).hexdigest()
                    name = f"files/{path}/{start:015d}-{sha[:16]}-{self.mark}"
                    parts.append((self._put(path, start, sha, name, data), len(data), sha))
        except FileNotFoundError:
            return None
        except BadInput as refusal:
            self.left_out[path] = str(refusal)
            return None
        self.unchanged[path] = signature, parts
        return parts

    def _put(self, path: str, start: int, sha: str, name: str, content: bytes | pathlib.Path) -> str:
        if (path, start, sha) not in self.objects:
            self.made.add(name)
            client.put(self.place, name, content)
            self.objects[path, start, sha] = name
        return self.objects[path, start, sha]

    def _upload_step(self, step: str) -> Files:
        """Upload a checkpoint, held by hard links since the trainer may delete it; returns its files ({}: gone)."""
        held = self.held / step
        try:
            manifest = read_bytes(self.folder / step / MANIFEST)
            signature = hashlib.sha256(manifest).hexdigest()
            if step in self.steps and self.steps[step][0] == signature:
                return self.steps[step][1]
            shutil.rmtree(held, ignore_errors=True)
            shutil.copytree(self.folder / step, held, copy_function=_link)
        except OSError:
            if (self.folder / step / MANIFEST).exists():
                raise
            # Objects of it are missing in the store: a fallback, not this, decides that it is given up.
            return self.steps[step][1] if step in self.steps and (self.folder / step).is_dir() else {}
        except BadInput as refusal:  # for example, its manifest is a link
            self.left_out[step] = str(refusal)
            return {}
        names = [path.relative_to(held).as_posix() for path in sorted(held.rglob("*")) if path.is_file()]
        recorded = {MANIFEST: signature}
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # a damaged one records nothing
            recorded |= {name: entry["sha256"] for name, entry in parse_json(manifest)["files"].items()}

        def upload(name: str) -> Parts:
            try:
                with open_file(held / name) as file:
                    sha = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
            except BadInput:  # a link
                return []
            if recorded.get(name) != sha:
                return []
            target = f"files/{step}-{signature[:12]}-{self.mark}/{name}"
            return [(self._put(target, 0, sha, target, held / name), (held / name).stat().st_size, sha)]

        uploaded = dict(zip((f"{step}/{name}" for name in names), client.in_parallel(upload, names), strict=True))
        shutil.rmtree(held, ignore_errors=True)
        if set(names) != set(recorded) or not all(uploaded.values()):
            self.damaged.append(step)
            uploaded = {}
        self.steps[step] = signature, uploaded
        return uploaded

    def sweep(self, before: Files, now: Files) -> None:
        """Delete the objects that are no longer part of the folder."""
        kept = object_names(now)
        surplus = (object_names(before) | self.made) - kept
        self.made.clear()
        self.objects = {key: name for key, name in self.objects.items() if name in kept}
        client.delete(self.place, sorted(surplus))


def _link(source: str, target: str) -> None:
    """Link a file, or copy it if it is on another disk."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copy2(source, target)


def object_names(files: Files) -> set[str]:
    """Names of the objects that files consist of."""
    return {name for parts in files.values() for name, _, _ in parts}


def list_folder(folder: pathlib.Path) -> tuple[list[str], list[str]]:
    """List (checkpoints, other files) of a folder as relative paths, without hidden files and drafts."""
    steps, paths = [], []
    for place, folders, names in os.walk(folder):
        here = pathlib.Path(place)
        for name in [name for name in folders if _is_step(here / name)]:
            steps.append((here / name).relative_to(folder).as_posix())
            folders.remove(name)
        folders[:] = sorted(name for name in folders if not _is_draft(name))
        paths += [(here / name).relative_to(folder).as_posix() for name in names if not _is_draft(name)]
    return sorted(steps, key=lambda step: int(step.rpartition("/")[2]), reverse=True), sorted(paths)


def _is_step(path: pathlib.Path) -> bool:
    return path.parent.name == "checkpoints" and path.name.isdecimal() and not path.is_symlink()


def _is_draft(name: str) -> bool:
    return name.startswith(".") or name.endswith(".tmp") or ".tmp-" in name


def _signature(descriptor: int) -> tuple[int, int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns, status.st_ino
