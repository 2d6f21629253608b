"""Token shards: a folder of flat files, written once and never changed.

    FOLDER/train-00000.tokens    ids, little-endian, each document followed by token 0
    FOLDER/train-00000.offsets   int64: where each document starts, and the end of the last
    FOLDER/val-00000.tokens ...
    FOLDER/index.json            names, sizes and SHA-256 of these files, and what made them

A folder is filled under a temporary name beside its final one, synced and renamed: a name without `.tmp-` is complete.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import time
import uuid
from collections.abc import Iterable
from typing import Any

import numpy as np

from scalelab.data.tokenizers.tokenizer import DEFAULT_SEPARATOR, id_type
from scalelab.errors import BadInput
from scalelab.record.records import fsync
from scalelab.untrusted.documents import read_document
from scalelab.untrusted.files import open_file
from scalelab.untrusted.paths import path_below

SHARD_FORMAT = 1
MASKED_DTYPE = "<i4"  # of corpora with chats: ids that are read and not predicted are below -1 (`tokenizers/chat.py`)
TOKEN_DTYPES = ("|u1", "<u2", "<u4", MASKED_DTYPE)  # all values of `Tokenizer.dtype`, and the masked one
FILE_NAME = re.compile(r"[\w-][\w.-]*")  # name of a shard's file, directly in the folder
SHARD_TOKENS = 2**25  # a shard ends with the document that reaches this; documents are never cut
HASHED_ON_OPEN_BYTES = 2**28  # size up to which opening compares SHA-256 too (about 1 s at worst), above it only sizes
STALE_S = 24 * 3600  # age at which the writer of a temporary folder is taken for gone


@dataclasses.dataclass(frozen=True)
class Split:
    """One split, memory-mapped: `shards[i]` holds ids, `offsets[i]` (int64) the document starts and the last end."""

    shards: tuple[np.ndarray, ...]
    offsets: tuple[np.ndarray, ...]
    predicted: int | None = None  # how many of the tokens are targets; None: all

    @property
    def n_targets(self) -> int:
        """Tokens that are predicted: of chats those of the assistant's turns."""
        return self.n_tokens if self.predicted is None else self.predicted

    @property
    def n_tokens(self) -> int:
        return sum(len(shard) for shard in self.shards)

    @property
    def n_documents(self) -> int:
        return sum(len(offsets) - 1 for offsets in self.offsets)


def check_still_there(split: Split) -> None:
    """Raise BadInput if a file of the split is gone or has another size than when it was opened.

    A deleted file stays readable until the run is started again; reading past the end of a shortened one kills the
    process.
    """
    for shard in split.shards:
        path, opened = getattr(shard, "filename", None), shard.nbytes
        if path is None:  # in memory
            continue
        size = os.stat(path).st_size if os.path.exists(path) else None
        if size != opened:
            change = "is gone" if size is None else f"has {size} bytes, and had {opened}"
            raise BadInput(f"{path} {change} since the run opened it: put it back, and the same command goes on")


class SplitWriter:
    """Writer of one split's shards in `folder`; `close` returns their entries for the index."""

    def __init__(self, folder: pathlib.Path, split: str, dtype: np.dtype) -> None:
        self.folder, self.split, self.dtype = folder, split, dtype
        self.entries: list[dict[str, Any]] = []
        self.tokens: list[np.ndarray] = []
        self.offsets = [0]

    def add(self, ids: np.ndarray) -> None:
        """Append one document and its separator."""
        self.tokens += [ids.astype(self.dtype), np.array([DEFAULT_SEPARATOR], self.dtype)]
        self.offsets.append(self.offsets[-1] + len(ids) + 1)
        if self.offsets[-1] >= SHARD_TOKENS:
            self._flush()

    def close(self) -> list[dict[str, Any]]:
        if self.tokens:
            self._flush()
        return self.entries

    def _flush(self) -> None:
        name = f"{self.split}-{len(self.entries):05d}"
        tokens = _write_array(self.folder / f"{name}.tokens", np.concatenate(self.tokens))
        offsets = _write_array(self.folder / f"{name}.offsets", np.array(self.offsets, "<i8"))
        self.entries.append({"tokens": tokens, "offsets": offsets})
        self.tokens, self.offsets = [], [0]


def _write_array(path: pathlib.Path, array: np.ndarray) -> dict[str, Any]:
    with open(path, "wb") as file:
        file.write(array.data)
        file.flush()
        os.fsync(file.fileno())
    return {"file": path.name, "bytes": array.nbytes, "sha256": hashlib.sha256(array.data).hexdigest()}


def write_shard_folder(
    final: pathlib.Path, documents: Iterable[tuple[str, np.ndarray]], dtype: np.dtype, facts: dict
) -> None:
    """Write (split, ids) pairs as the folder `final`; if another process finishes it first, its folder stays."""
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale_drafts(final.parent)
    building = final.with_name(f"{final.name}.tmp-{uuid.uuid4().hex[:12]}")
    building.mkdir()
    try:
        writers = {split: SplitWriter(building, split, dtype) for split in ("train", "val")}
        for split, ids in documents:
            writers[split].add(ids)
        splits = {split: writer.close() for split, writer in writers.items()}
        index = {"format": SHARD_FORMAT, "dtype": dtype.str, "splits": splits, **facts}
        _write_array(building / "index.json", np.frombuffer(json.dumps(index, indent=1).encode(), np.uint8))
        fsync(building)
        _publish(building, final)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _publish(building: pathlib.Path, final: pathlib.Path) -> None:
    try:
        os.rename(building, final)
    except OSError:
        if not (final / "index.json").exists():  # a finished folder is another process's; anything else is an error
            raise
    fsync(final.parent)


def _remove_stale_drafts(cache: pathlib.Path) -> None:
    """Remove drafts of killed writers, once they are too old to be still in use."""
    for draft in cache.glob("*.tmp-*"):
        if time.time() - draft.stat().st_mtime > STALE_S:
            shutil.rmtree(draft, ignore_errors=True)


def read_shard_folder(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Split]]:
    """Read and verify the index and the splits of a finished folder. Raises BadInput that names the wrong file."""
    index = read_shard_index(folder)
    all_shards = [shard for shards in index["splits"].values() for shard in shards]
    check_shard_entries(folder / "index.json", index["dtype"], all_shards)
    entries = [entry for shard in all_shards for entry in shard.values()]
    check_shard_files(folder, entries, hashes=sum(e["bytes"] for e in entries) <= HASHED_ON_OPEN_BYTES)
    return index, {name: map_split(folder, shards, index["dtype"]) for name, shards in index["splits"].items()}


def read_shard_index(folder: pathlib.Path) -> dict[str, Any]:
    """Read the index of a finished folder. Raises BadInput."""
    path = folder / "index.json"
    try:
        index = read_document(path)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} is missing or not JSON ({error}); {_rebuild_hint(folder)}") from error
    known = isinstance(index, dict) and index.get("format")
    if known != SHARD_FORMAT:
        raise BadInput(f"{path} has format {known}, this code reads {SHARD_FORMAT}; {_rebuild_hint(folder)}")
    if not (isinstance(index.get("splits"), dict) and set(index["splits"]) == {"train", "val"} and "dtype" in index):
        raise BadInput(f"{path} lacks its dtype or splits: was it edited? {_rebuild_hint(folder)}")
    return index


def check_shard_entries(
    path: pathlib.Path, dtype: Any, shards: Iterable[dict[str, Any]], tokenizer_ids: int | None = None
) -> None:
    """Raise BadInput if the index at `path` has a type, file or size that our writer never produces.

    An index is text that anybody may have edited; with an object type numpy would read a file's bytes as pointers.
    """
    if dtype not in TOKEN_DTYPES:
        raise BadInput(
            f"{path}: dtype={dtype!r} is not a type of token ids ({', '.join(TOKEN_DTYPES)}); "
            f"{_rebuild_hint(path.parent)}"
        )
    if tokenizer_ids is not None and np.dtype(dtype) not in (id_type(tokenizer_ids), MASKED_DTYPE):
        raise BadInput(f"{path}: dtype={dtype!r} is not the type for {tokenizer_ids} ids; {_rebuild_hint(path.parent)}")
    for shard in shards:
        is_entry = isinstance(shard, dict) and shard.keys() == {"tokens", "offsets"}
        pairs: list[tuple[str, Any]] = list(shard.items()) if is_entry else [("tokens", None)]
        for kind, entry in pairs:
            _check_file_entry(path, dtype, kind, entry)


def _check_file_entry(path: pathlib.Path, dtype: Any, kind: str, entry: Any) -> None:
    """Raise BadInput if the entry of a shard's `kind` (tokens, offsets) has no valid name, size or hash."""
    width = np.dtype(dtype if kind == "tokens" else "<i8").itemsize
    is_file = isinstance(entry, dict) and entry.keys() >= {"file", "bytes", "sha256"}
    name, size = (entry["file"], entry["bytes"]) if is_file else (None, None)
    hint = _rebuild_hint(path.parent)
    if not (isinstance(name, str) and FILE_NAME.fullmatch(name) and name.endswith(f".{kind}")):
        raise BadInput(f"{path} names a file {name!r}: not the name of a shard's {kind} beside it; {hint}")
    if not (isinstance(size, int) and size > 0 and size % width == 0 and isinstance(entry["sha256"], str)):
        raise BadInput(f"{path}: {name} has bytes={size!r}, not a multiple of {width}; {hint}")


def check_shard_files(folder: pathlib.Path, entries: Iterable[dict[str, Any]], hashes: bool) -> None:
    """Compare every file with its entry of the index: size always, SHA-256 if `hashes`. Raises BadInput."""
    for entry in entries:
        path = path_below(folder, entry["file"], "index.json")
        size = path.stat().st_size if path.is_file() else None
        if size != entry["bytes"]:
            difference = "is missing" if size is None else f"has {size} bytes, its index says {entry['bytes']}"
            raise BadInput(f"{path} {difference}; {_rebuild_hint(folder)}")
        if hashes:
            with open_file(path) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != entry["sha256"]:
                raise BadInput(
                    f"{path} has SHA-256 {digest[:12]}…, its index says {entry['sha256'][:12]}…; "
                    f"{_rebuild_hint(folder)}"
                )


def _rebuild_hint(folder: pathlib.Path) -> str:
    return f"delete the folder {folder} and run again to rebuild it"


def map_split(folder: pathlib.Path, shards: list[dict[str, Any]], dtype: str, predicted: int | None = None) -> Split:
    """Map the shards of one split into memory: only the parts that are read take memory."""
    tokens = tuple(np.memmap(path_below(folder, s["tokens"]["file"]), np.dtype(dtype), "r") for s in shards)
    offsets = tuple(np.memmap(path_below(folder, s["offsets"]["file"]), "<i8", "r") for s in shards)
    return Split(tokens, offsets, predicted)
