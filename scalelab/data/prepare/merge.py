"""Join units into shards: consecutive units of a part, in order of their numbers, up to SHARD_TOKENS a shard.

A shard's files are written under temporary names, synced and renamed; then its entry is written to
`.units/NAME-train-00000.json`; then the units' files are removed. At any moment all tokens are on disk, once or twice.
"""

import hashlib
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from scalelab.data import shards
from scalelab.data.prepare.units import SPLITS, PrepareJob
from scalelab.errors import WorkFailed
from scalelab.record import records
from scalelab.record.jsonfiles import TEXT, WHOLE
from scalelab.untrusted.files import open_file

_FILE_SCHEMA = {"file": TEXT, "bytes": WHOLE, "sha256": TEXT}
ENTRY_SCHEMA = {"tokens": _FILE_SCHEMA, "offsets": _FILE_SCHEMA}
COPY_BYTES = 2**22  # bytes at once


class PlannedShard(NamedTuple):
    """A shard to be written: name, split, and (unit, tokens, hashes) of the units to join."""

    name: str
    split: str
    units: tuple[tuple[str, int, Mapping[str, str]], ...]


def plan_shards(part: str, units: Iterable[tuple[str, Mapping[str, Any]]]) -> list[PlannedShard]:
    """Plan the shards of a part from (name, record) of its units in order."""
    planned: list[PlannedShard] = []
    units = list(units)
    for split in SPLITS:
        members: list[tuple[str, int, Mapping[str, str]]] = []
        n_tokens = number = 0
        for name, record in units:
            if record[split]["n_tokens"]:
                members.append((name, record[split]["n_tokens"], record[split]["sha256"]))
                n_tokens += record[split]["n_tokens"]
            if n_tokens >= shards.SHARD_TOKENS:
                planned.append(PlannedShard(f"{part}-{split}-{number:05d}", split, tuple(members)))
                members, n_tokens, number = [], 0, number + 1
        if members:
            planned.append(PlannedShard(f"{part}-{split}-{number:05d}", split, tuple(members)))
    return planned


def find_shard_entry(job: PrepareJob, shard: str) -> dict[str, Any] | None:
    """Find the entry of a written shard; None if it is not written yet."""
    path = job.units / f"{shard}.json"
    return records.read_json(path, ENTRY_SCHEMA) if path.is_file() else None


def write_shard(shard: PlannedShard, job: PrepareJob, dtype: np.dtype) -> dict[str, Any]:
    """Join a shard's units and return its index entry. Raises WorkFailed if a unit's files have changed."""
    tokens = _copy(job.folder / f"{shard.name}.tokens", _tokens(shard, job))
    offsets = _copy(job.folder / f"{shard.name}.offsets", _offsets(shard, job))
    width = dtype.itemsize
    assert tokens["bytes"] == width * sum(n for _, n, _ in shard.units), shard.name
    entry = {"tokens": tokens, "offsets": offsets}
    records.fsync(job.folder)
    records.write_json(job.units / f"{shard.name}.json", entry)
    for name, _, _ in shard.units:
        for kind in ("tokens", "offsets"):
            (job.units / name / f"{shard.split}.{kind}").unlink(missing_ok=True)
    return entry


def _copy(path: pathlib.Path, pieces: Iterator[bytes]) -> dict[str, Any]:
    digest, draft, size = hashlib.sha256(), path.with_name(f"{path.name}.tmp-{os.getpid()}"), 0
    try:
        with open(draft, "wb") as file:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
                size += len(piece)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, path)
    except OSError as error:
        raise WorkFailed(
            f"{path} could not be written ({error.strerror or error}); the same command goes on"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return {"file": path.name, "bytes": size, "sha256": digest.hexdigest()}


def _tokens(shard: PlannedShard, job: PrepareJob) -> Iterator[bytes]:
    for name, _, digests in shard.units:
        yield from _checked(job.units / name / f"{shard.split}.tokens", digests["tokens"])


def _offsets(shard: PlannedShard, job: PrepareJob) -> Iterator[bytes]:
    """Offsets of the first unit, then of each next unit without its 0, shifted by the tokens before it."""
    before = 0
    for name, n_tokens, digests in shard.units:
        pieces = _checked(job.units / name / f"{shard.split}.offsets", digests["offsets"])
        for i, piece in enumerate(pieces):
            moved = np.frombuffer(piece, "<i8") + before
            yield (moved[1:] if before and i == 0 else moved).tobytes()
        before += n_tokens


def _checked(path: pathlib.Path, wanted: str) -> Iterator[bytes]:
    digest = hashlib.sha256()
    with open_file(path) as file:
        while piece := file.read(COPY_BYTES):
            digest.update(piece)
            yield piece
    if digest.hexdigest() != wanted:
        raise WorkFailed(
            f"{path} was damaged after it was written: delete {path.parent} and run the same command again"
        )
