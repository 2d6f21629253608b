"""One unit of work of `scalelab prepare`: read its documents, tokenize them, write them by split.

    UNITS/web-000012/train.tokens, train.offsets, val.tokens, val.offsets     like shards, for this unit only
    UNITS/web-000012/record.json                                              counts, and the SHA-256 of each file

A unit is written under a temporary name, synced and renamed: one with its final name is complete. Its content depends
only on its files, the tokenizer and the split.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np

from scalelab.data.prepare import specs
from scalelab.data.read.reading import Reading
from scalelab.data.shards import MASKED_DTYPE
from scalelab.data.tokenizers import chat, load
from scalelab.data.tokenizers.tokenizer import Tokenizer
from scalelab.errors import WorkFailed
from scalelab.record.jsonfiles import LIST, TEXT, WHOLE
from scalelab.record.records import fsync, read_json

SPLITS = ("train", "val")
_SPLIT_SCHEMA = {
    "n_tokens": WHOLE, "n_documents": WHOLE, "text_bytes": WHOLE, "n_targets?": WHOLE,
    "sha256": {"tokens": TEXT, "offsets": TEXT},
}  # fmt: skip
RECORD_SCHEMA = {"train": _SPLIT_SCHEMA, "val": _SPLIT_SCHEMA, "n_bad": WHOLE, "bad": LIST, "n_filtered?": WHOLE}
BUFFER_TOKENS = 2**20  # tokens in memory before they are written


class Stopped(Exception):
    """A signal came: the unit is left unfinished, for the next call."""


@dataclasses.dataclass(frozen=True)
class PrepareJob:
    """Facts shared by all units. `folder`: the unfinished prepared folder, which holds the tokenizer."""

    folder: pathlib.Path
    tokenizer: dict[str, Any]
    text_key: str
    skip_bad: bool
    val_fraction: float
    split_seed: int
    template: chat.ChatTemplate | None = None

    @property
    def units(self) -> pathlib.Path:
        """Folder of the units until they are merged."""
        return self.folder / ".units"

    def reading(self) -> Reading:
        """Options for the readers."""
        entry = self.tokenizer
        options = self.text_key, self.skip_bad, entry["vocab_size"], entry["separator"], entry["kind"] == "bytes"
        return Reading(*options, is_chat=self.template is not None)

    def dtype(self, tokenizer: Tokenizer) -> np.dtype:
        """The type of stored ids: with chats it holds masked ones."""
        return tokenizer.dtype if self.template is None else np.dtype(MASKED_DTYPE)


class DocumentStream:
    """Writer of one split of one unit, in bounded memory."""

    def __init__(self, folder: pathlib.Path, split: str, dtype: np.dtype, separator: int) -> None:
        self.dtype, self.split, self.n_targets = dtype, split, 0
        self.end = np.array([separator], self.dtype)
        self.files = {name: open(folder / f"{split}.{name}", "wb") for name in ("tokens", "offsets")}  # noqa: SIM115
        self.hashes = {name: hashlib.sha256() for name in self.files}
        self.tokens: list[np.ndarray] = []
        self.offsets = [0]
        self.n_tokens = self.n_documents = self.held = 0

    def add(self, ids: np.ndarray) -> None:
        """Append a document and its separator."""
        is_masked = ids.dtype.kind == "i" and len(ids) > 0 and ids.min() <= chat.MASKED
        end = chat.mask_ids(self.end, np.array([True])) if is_masked else self.end  # no turn of the assistant
        self.tokens += [ids.astype(self.dtype, copy=False), end]
        self.n_targets += int((ids >= 0).sum()) if is_masked else len(ids) + 1
        self.n_tokens += len(ids) + 1
        self.n_documents += 1
        self.held += len(ids) + 1
        self.offsets.append(self.n_tokens)
        if self.held >= BUFFER_TOKENS or len(self.offsets) >= BUFFER_TOKENS // 8:
            self.flush()

    def flush(self) -> None:
        tokens = np.concatenate(self.tokens) if self.tokens else np.empty(0, self.dtype)
        for name, array in (("tokens", tokens), ("offsets", np.array(self.offsets, "<i8"))):
            self.files[name].write(array.data)
            self.hashes[name].update(array.data)
        self.tokens, self.offsets, self.held = [], [], 0

    def __enter__(self) -> "DocumentStream":
        return self

    def __exit__(self, *_: Any) -> None:
        for file in self.files.values():
            file.close()

    def finish(self) -> dict[str, Any]:
        """Sync both files to disk and return their entry for the record."""
        self.flush()
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        digests = {name: digest.hexdigest() for name, digest in self.hashes.items()}
        return {"n_tokens": self.n_tokens, "n_documents": self.n_documents, "sha256": digests}


def is_held_out(content: bytes, val_fraction: float, split_seed: int) -> bool:
    """Whether a document belongs to the validation split: a hash of (seed, content) falls into that share of hashes.
    Copies fall on the same side; names, order and other documents don't matter.
    """
    digest = hashlib.sha256(f"{split_seed}:".encode() + hashlib.sha256(content).digest()).digest()
    return int.from_bytes(digest[:8], "big") < val_fraction * 2.0**64


def write_unit(
    unit: specs.WorkUnit, job: PrepareJob, tokenizer: Tokenizer, stop: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Write a unit and return its record. Raises BadInput for unreadable files, Stopped once `stop()` is true."""
    final = job.units / unit.name
    draft = final.with_name(f"{unit.name}.tmp-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        record = _fill(draft, unit, job, tokenizer, stop)
        (draft / "record.json").write_text(json.dumps(record, indent=1))
        fsync(draft / "record.json")
        fsync(draft)
        os.rename(draft, final)
    except OSError as error:
        raise WorkFailed(
            f"{final} could not be written ({error.strerror or error}); the same command goes on"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return record


def read_record(folder: pathlib.Path) -> dict[str, Any]:
    """Read the record of a written unit. BadInput if it is damaged."""
    record: dict[str, Any] = read_json(folder / "record.json", RECORD_SCHEMA)
    return record


def _fill(
    draft: pathlib.Path, unit: specs.WorkUnit, job: PrepareJob, tokenizer: Tokenizer, stop: Callable[[], bool]
) -> dict[str, Any]:
    reading, text_bytes = job.reading(), dict.fromkeys(SPLITS, 0)
    if job.template:
        reading.render_chat = chat.make_chat_encoder(job.template, tokenizer)
    how = job.dtype(tokenizer), tokenizer.separator
    with DocumentStream(draft, "train", *how) as train, DocumentStream(draft, "val", *how) as val:
        streams = {"train": train, "val": val}
        for document in specs.unit_documents(unit, reading):
            if stop():
                raise Stopped
            if isinstance(document, bytes):
                content, ids, n_bytes = document, _encoded(document, unit, reading, tokenizer), len(document)
            else:
                content, ids, n_bytes = specs.document_content(document), document, _n_bytes(document, tokenizer)
            if not len(ids):
                continue  # a tokenizer may drop white space
            split = SPLITS[is_held_out(content, job.val_fraction, job.split_seed)]
            streams[split].add(ids)
            text_bytes[split] += n_bytes
        record: dict[str, Any] = {
            split: stream.finish() | {"text_bytes": text_bytes[split]} for split, stream in streams.items()
        }
    if job.template:
        record = {split: facts | {"n_targets": streams[split].n_targets} for split, facts in record.items()}
    return record | {"n_bad": reading.n_bad, "bad": reading.named, "n_filtered": reading.n_filtered}


def _encoded(document: bytes, unit: specs.WorkUnit, reading: Reading, tokenizer: Tokenizer) -> np.ndarray:
    """Encode a text; if the tokenizer's library fails, the ids are empty and the text counts as bad."""
    try:
        return tokenizer.encode(document)
    except ValueError as error:
        places = " to ".join(dict.fromkeys([unit.pieces[0].path, unit.pieces[-1].path]))
        reading.bad(f"{places}: the document of {len(document)} bytes that begins with {document[:32]!r}", str(error))
        return np.empty(0, np.uint32)


def _n_bytes(ids: np.ndarray, tokenizer: Tokenizer) -> int:
    """Bytes of text behind ready-made ids, of a chat behind its targets; one per id without a tokenizer."""
    ids = ids[ids >= 0] if ids.dtype.kind == "i" else ids
    return len(ids) if tokenizer.kind == "ids" else len(tokenizer.decode(ids))


def load_job_tokenizer(job: PrepareJob) -> Tokenizer:
    """Load the job's tokenizer from its folder."""
    return load.load_indexed_tokenizer(job.tokenizer, job.folder)
