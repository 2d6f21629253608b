"""One unit of work of `scalelab prepare`: read its documents, tokenize them, write them by split.

    UNITS/web-000012/train.tokens, train.offsets, val.tokens, val.offsets     like shards, for this unit only
    UNITS/web-000012/train.documents, val.documents                           hash and bytes of each document
    UNITS/web-000012/train.signatures, …                                      MinHash of each, with --dedup=near
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from scalelab.data import splits
from scalelab.data.prepare import near, specs
from scalelab.data.read.reading import Reading
from scalelab.data.shards import MASKED_DTYPE
from scalelab.data.tokenizers import chat, load
from scalelab.data.tokenizers.tokenizer import Tokenizer
from scalelab.errors import WorkFailed
from scalelab.record import records
from scalelab.record.jsonfiles import LIST, TEXT, WHOLE

SPLITS = ("train", "val")
SCREENED = "screened.json"  # in .units/: counts of copies, once all are left out; in a unit: copies of it are left out
_SPLIT_SCHEMA = {
    "n_tokens": WHOLE, "n_documents": WHOLE, "text_bytes": WHOLE, "n_unknown": WHOLE, "n_targets?": WHOLE,
    "sha256": {"*": TEXT},
}  # fmt: skip
DOCUMENT_DTYPE = np.dtype([("hash", "<u8"), ("text_bytes", "<i8")])
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
    cuts: Mapping[str, int] = dataclasses.field(default_factory=dict)  # part: bytes of its documents' pieces
    signatures: bool = False
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


class Document(NamedTuple):
    """A document, or a piece of one, as it is stored: its side, ids, hash and bytes of text."""

    split: str
    ids: np.ndarray
    hash: int
    text_bytes: int


class DocumentStream:
    """Writer of one split of one unit, in bounded memory."""

    def __init__(self, folder: pathlib.Path, split: str, job: PrepareJob, tokenizer: Tokenizer) -> None:
        self.dtype, self.split, self.is_chat, self.n_targets = job.dtype(tokenizer), split, bool(job.template), 0
        self.end = np.array([tokenizer.separator], self.dtype)
        names = ("tokens", "offsets", "documents", *(["signatures"] if job.signatures else []))
        self.files = {name: open(folder / f"{split}.{name}", "wb") for name in names}  # noqa: SIM115
        self.hashes = {name: hashlib.sha256() for name in self.files}
        self.tokens: list[np.ndarray] = []
        self.signatures: list[np.ndarray] = []
        self.documents: list[tuple[int, int]] = []
        self.offsets = [0]
        self.n_tokens = self.n_documents = self.n_unknown = self.text_bytes = self.held = 0
        self.unknown = tokenizer.unknown

    def add(self, document: Document) -> None:
        """Append a document and its separator."""
        ids = document.ids
        end = chat.mask_ids(self.end, np.array([True])) if chat.is_masked(ids) else self.end  # no assistant's turn
        self.tokens += [ids.astype(self.dtype, copy=False), end]
        self.n_targets += chat.count_targets(ids) + chat.count_targets(end)
        self.documents.append((document.hash, document.text_bytes))
        if "signatures" in self.files:
            self.signatures.append(near.signature(chat.unmask_ids(ids)))
        self.n_unknown += chat.count_id(ids, self.unknown)
        self.text_bytes += document.text_bytes
        self.n_tokens += len(ids) + 1
        self.n_documents += 1
        self.held += len(ids) + 1
        self.offsets.append(self.n_tokens)
        if self.held >= BUFFER_TOKENS or len(self.offsets) >= BUFFER_TOKENS // 8:
            self.flush()

    def flush(self) -> None:
        """Write the documents held in memory to the files."""
        tokens = np.concatenate(self.tokens) if self.tokens else np.empty(0, self.dtype)
        arrays = {
            "tokens": tokens,
            "offsets": np.array(self.offsets, "<i8"),
            "documents": np.array(self.documents, DOCUMENT_DTYPE),
            "signatures": np.array(self.signatures, near.SIGNATURE_TYPE),
        }
        for name, file in self.files.items():
            content = arrays[name].tobytes()
            file.write(content)
            self.hashes[name].update(content)
        self.tokens, self.offsets, self.documents, self.signatures, self.held = [], [], [], [], 0

    def __enter__(self) -> "DocumentStream":
        return self

    def __exit__(self, *_: Any) -> None:
        for file in self.files.values():
            file.close()

    def finish(self) -> dict[str, Any]:
        """Sync the files to disk and return their entry for the record."""
        self.flush()
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        digests = {name: digest.hexdigest() for name, digest in self.hashes.items()}
        counts = {"n_tokens": self.n_tokens, "n_documents": self.n_documents, "n_unknown": self.n_unknown}
        counts |= {"n_targets": self.n_targets} if self.is_chat else {}
        return counts | {"sha256": digests, "text_bytes": self.text_bytes}


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
        records.fsync(draft / "record.json")
        records.fsync(draft)
        os.rename(draft, final)
    except OSError as error:
        raise WorkFailed(
            f"{final} could not be written ({error.strerror or error}); the same command goes on"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return record


def is_written(job: PrepareJob, unit: specs.WorkUnit) -> bool:
    """Whether a unit is there. One without its documents' hashes, which an older version wrote, is removed.

    So is one whose copies were left out by a process that was killed before it had counted all of them.
    """
    folder = job.units / unit.name
    is_old = not all((folder / f"{split}.documents").is_file() for split in SPLITS)
    is_half_screened = (folder / SCREENED).is_file() and not (job.units / SCREENED).is_file()
    if folder.is_dir() and (is_old or is_half_screened):
        shutil.rmtree(folder)
    return folder.is_dir()


def read_record(folder: pathlib.Path) -> dict[str, Any]:
    """Read the record of a written unit. BadInput if it is damaged."""
    record: dict[str, Any] = records.read_json(folder / "record.json", RECORD_SCHEMA)
    return record


def hold_chats(unit_records: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a unit has a chat: tokens that are read and not predicted."""
    sides = [record[split] for record in unit_records for split in SPLITS]
    return any(side.get("n_targets", side["n_tokens"]) < side["n_tokens"] for side in sides)


def _fill(
    draft: pathlib.Path, unit: specs.WorkUnit, job: PrepareJob, tokenizer: Tokenizer, stop: Callable[[], bool]
) -> dict[str, Any]:
    reading = job.reading()
    if job.template:
        reading.render_chat = chat.make_chat_encoder(job.template, tokenizer)
    with (
        DocumentStream(draft, "train", job, tokenizer) as train,
        DocumentStream(draft, "val", job, tokenizer) as val,
    ):
        streams = {"train": train, "val": val}
        for document in specs.unit_documents(unit, reading):
            if stop():
                raise Stopped
            for each in _pieces(document, unit, job, tokenizer, reading):
                if len(each.ids):  # a tokenizer may drop white space
                    streams[each.split].add(each)
        record: dict[str, Any] = {split: stream.finish() for split, stream in streams.items()}
    return record | {"n_bad": reading.n_bad, "bad": reading.named, "n_filtered": reading.n_filtered}


def split_document(document: bytes | np.ndarray, unit: specs.WorkUnit, job: PrepareJob, n_bytes: int) -> Iterator[Any]:
    """Yield (split, piece, hash) of a document's pieces; uncut documents are one piece."""
    pieces = splits.cut_document(document, 0 if unit.split else job.cuts.get(unit.part, 0), n_bytes)
    hashes = [splits.content_hash(specs.document_content(piece), job.split_seed) for piece in pieces]
    if unit.split:
        yield from ((unit.split, piece, each) for piece, each in zip(pieces, hashes, strict=True))
        return
    whole = hashes[0] if len(pieces) == 1 else splits.content_hash(specs.document_content(document), job.split_seed)
    sides = splits.choose_pieces(hashes, whole, job.val_fraction)
    for piece, each, side in zip(pieces, hashes, sides, strict=True):
        yield SPLITS[side], piece, each


def _pieces(
    document: bytes | np.ndarray, unit: specs.WorkUnit, job: PrepareJob, tokenizer: Tokenizer, reading: Reading
) -> Iterator[Document]:
    """Encode a document, or its pieces; those of ready-made ids count the bytes of their text."""
    n_bytes = len(document) if isinstance(document, bytes) else _n_bytes(document, tokenizer)
    for split, piece, content_hash in split_document(document, unit, job, n_bytes):
        if isinstance(piece, bytes):
            yield Document(split, _encoded(piece, unit, reading, tokenizer), content_hash, len(piece))
        else:
            size = n_bytes if len(piece) == len(document) else _n_bytes(piece, tokenizer)
            yield Document(split, piece, content_hash, size)


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
