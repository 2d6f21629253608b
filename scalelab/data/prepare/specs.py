"""Parse `--source=[NAME=]SPEC` into named parts, their files, and the units of work that workers read.

The result depends neither on the number of workers nor on the order of sources, globs or folder listings: parts are
sorted by name, files by resolved path, and a file that is matched twice (by two globs, through a link) counts once.
"""

import collections
import dataclasses
import glob
import itertools
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from scalelab.data.read import archives, delimited, foreign, megatron, text, tfdsets, tokenfiles
from scalelab.data.read.files import PACKED_ENDINGS, inner_name
from scalelab.data.read.reading import Piece, Reading
from scalelab.data.read.selection import EVERYTHING, Selection, split_spec
from scalelab.data.read.tables import arrow, columns, parquet
from scalelab.data.sources import remote
from scalelab.errors import BadInput, nearest_hint

NAMED_SPEC = re.compile(r"([A-Za-z0-9][\w.-]*)=(.+)")
UNITS_PER_CORPUS = 256  # least number of units, within the limits of UNIT_BYTES
UNIT_BYTES = (2**20, 2**26)  # smallest and largest unit: a killed unit is read again from its start
TOKEN_KINDS = ("tokens", "megatron", "parquet ids", "arrow ids")  # kinds that need no tokenizer
FIELDLESS_KINDS = ("text", "tokens", "megatron")  # kinds without keys and filters


@dataclasses.dataclass(frozen=True)
class SourcePart:
    """A named source: its spec, the kinds and paths of its files, in order, and which records of them are taken."""

    name: str
    spec: str
    kinds: tuple[str, ...]
    paths: tuple[str, ...]
    selection: Selection = EVERYTHING
    origins: tuple[str, ...] = ()  # of files that were downloaded: their addresses, with a mark of the content


class WorkUnit(NamedTuple):
    """The work of one worker at a time: a part, a number in it, pieces of files, their bytes."""

    part: str
    number: int
    pieces: tuple[Piece, ...]
    n_bytes: int
    selection: Selection = EVERYTHING

    @property
    def name(self) -> str:
        return f"{self.part}-{self.number:06d}"


def parse_sources(sources: Sequence[str], text_key: str = "text") -> list[SourcePart]:
    """Parse `--source` flags as parts, sorted by name. Raises BadInput with all faults: no file, no name, a name twice.

    `text_key`: the key of a source that has none of its own.
    """
    parts, faults = [], list[str]()
    for source in sources:
        try:
            parts.append(_parse_part(source, text_key))
        except BadInput as fault:
            faults.append(str(fault))
    parts.sort(key=lambda part: part.name)
    for before, after in itertools.pairwise(parts):
        if before.name == after.name:
            faults.append(
                f"two sources are named {before.name!r}: name them apart, --source={before.name}1={before.spec} "
                f"--source={before.name}2={after.spec}"
            )
    if faults:
        raise BadInput(faults[0] if len(faults) == 1 else f"{len(faults)} faults: {'; '.join(faults)}")
    return parts


def _parse_part(source: str, text_key: str) -> SourcePart:
    named = NAMED_SPEC.fullmatch(source)
    if named and not os.path.exists(source):
        name, spec = named.groups()
    else:
        name, spec = "", source
    places, selection = (spec, EVERYTHING) if os.path.exists(os.path.expanduser(spec)) else split_spec(spec)
    if places.startswith("tfds:"):
        name = name or re.split(r"[/:@]", places[5:])[0]
        return SourcePart(name, spec, ("tfds",), (tfdsets.find_tfds(places[5:]),), selection)
    fetched = remote.fetch(places) if remote.is_remote(places) else []
    paths = [file.path for file in fetched] or _files(places)
    kinds = tuple(file_kind(path, selection.key or text_key) for path in paths)
    if selection._replace(sample=1.0).describe():
        for kind, path in zip(kinds, paths, strict=True):
            if kind in FIELDLESS_KINDS:
                Reading(selection=selection).check_no_fields(path)
    return SourcePart(
        name or _name(places), spec, kinds, tuple(paths), selection, tuple(file.origin for file in fetched)
    )


def _name(spec: str) -> str:
    """Derive a name from a path: its stem, or the nearest folder that is not a glob."""
    for part in reversed(pathlib.PurePath(spec.split(",")[0].strip()).parts):
        word = re.sub(r"[^\w-]+", "-", part.split(".")[0]).strip("-")
        if word and not glob.has_magic(part):
            return word
    return "data"


def _files(spec: str) -> list[str]:
    patterns = [pattern.strip() for pattern in spec.split(",") if pattern.strip()]
    if not patterns:
        raise BadInput("--source= names nothing: files and globs, separated by commas, or tfds:NAME")
    paths = sorted({path for pattern in patterns for path in _expand(pattern)})
    indices = {path.removesuffix(".idx") for path in paths if path.endswith(".idx")}
    bins = {path.removesuffix(".bin") for path in paths}
    for stem in sorted(indices - bins):
        if not os.path.isfile(f"{stem}.bin"):
            raise BadInput(f"{stem}.idx has no {stem}.bin beside it")
    return sorted({f"{path.removesuffix('.idx')}.bin" if path.endswith(".idx") else path for path in paths})


def _expand(pattern: str) -> list[str]:
    expanded = os.path.expanduser(pattern)
    if os.path.isdir(expanded):
        saved = arrow.saved_files(pathlib.Path(expanded))
        if saved is None:
            raise BadInput(
                f"--source={pattern} is a folder; did you mean {pattern.rstrip('/')}/{_usual_glob(expanded)}?"
            )
        return [os.path.realpath(path) for path in saved]
    matches = [expanded] if os.path.isfile(expanded) else glob.glob(expanded, recursive=True)
    files = [os.path.realpath(path) for path in matches if os.path.isfile(path)]
    if not files:
        parent = pathlib.Path(expanded).parent
        beside = [path.name for path in parent.iterdir()] if parent.is_dir() else []
        raise BadInput(
            f"--source={pattern} matches no file{nearest_hint(os.path.basename(expanded), beside) if beside else ''}"
        )
    return files


def _usual_glob(folder: str) -> str:
    """The glob of the ending that most files in a folder have."""
    endings = collections.Counter(
        ending for name in os.listdir(folder) if (ending := os.path.splitext(name)[1]) and name[0] not in "._"
    )
    return f"**/*{endings.most_common(1)[0][0]}" if endings else "**/*.txt"


def file_kind(path: str, key: str = "text") -> str:
    """A file's kind by its name, and for tables by the type of the column `key`: text, or ready-made ids.

    A `.bin` with an `.idx` beside it is Megatron's. BadInput for a file without text.
    """
    inner = inner_name(path)
    if archives.is_tar(path):
        return "tar"
    if inner.endswith(archives.JSON_ENDINGS):
        return "jsonl"
    if path.endswith(".bin"):
        return "megatron" if os.path.isfile(megatron.index_path(path)) else "tokens"
    if path.endswith(".npy"):
        return "tokens"
    if inner != path and inner.endswith((".parquet", ".zip", ".bin", ".npy", *arrow.ARROW_ENDINGS)):
        raise BadInput(f"{path}: unpack it first; only text, JSON lines, CSV, TSV and tar are read packed")
    if path.endswith(arrow.ARROW_ENDINGS):
        return _table_kind("arrow", arrow.arrow_schema(path), key)
    if path.endswith(".parquet"):
        return _table_kind("parquet", parquet.parquet_schema(path), key)
    if delimited.is_delimited(path):
        return "csv"
    if path.endswith(".zip"):
        return "zip"
    foreign.check_text_file(path)
    return "text"


def _table_kind(kind: str, schema: Any, key: str) -> str:
    return f"{kind} ids" if columns.holds_ids(columns.column_type(schema, key)) else kind


def part_bytes(part: SourcePart) -> int:
    """Bytes of a part's files on disk, packed or not."""
    files = zip(part.kinds, part.paths, strict=True)
    return sum(tfdsets.tfds_split_bytes(path) if kind == "tfds" else os.path.getsize(path) for kind, path in files)


def part_notes(part: SourcePart, text_key: str = "text") -> Iterator[str]:
    """Notes to the user on how these files are read."""
    files = list(zip(part.kinds, part.paths, strict=True))
    if part.origins:
        yield f"{part.name}: {len(files)} files were fetched, the first is {part.origins[0]}, kept as {part.paths[0]}"
    for path in (path for kind, path in files if kind == "csv"):
        if note := delimited.separator_note(path, part.selection.key or text_key):
            yield f"{part.name}: {note}"
    long = sum(kind == "text" and os.path.getsize(path) > text.CUT_BYTES for kind, path in files)
    if long:
        yield f"{part.name}: {long} text files above 1 MiB are cut at line ends into documents of about 1 MiB"
    unsplit = [
        path
        for kind, path in files
        if kind in ("tar", "csv") or (kind in ("text", "jsonl") and path.endswith(PACKED_ENDINGS))
    ]
    large = [path for path in unsplit if os.path.getsize(path) > UNIT_BYTES[1]]
    if large:
        yield (
            f"{part.name}: {large[0]} can't be entered in the middle, so one worker reads it and a kill begins it anew;"
            " smaller files would share it"
        )


def split_into_units(part: SourcePart, total_bytes: int, reading: Reading) -> Iterator[WorkUnit]:
    """Split a part into units of work: consecutive pieces of files, each about 1/UNITS_PER_CORPUS of the corpus."""
    low, high = UNIT_BYTES
    wanted = min(max(total_bytes // UNITS_PER_CORPUS, low), high)
    reading.selection = part.selection
    pieces: list[Piece] = []
    unit_bytes = number = 0
    for kind, path in zip(part.kinds, part.paths, strict=True):
        for piece, n_bytes in DOCUMENT_READERS[kind][0](path, wanted, reading):
            pieces.append(piece)
            unit_bytes += n_bytes
            if unit_bytes >= wanted:
                yield WorkUnit(part.name, number, tuple(pieces), unit_bytes, part.selection)
                pieces, unit_bytes, number = [], 0, number + 1
    if pieces:
        yield WorkUnit(part.name, number, tuple(pieces), unit_bytes, part.selection)


def unit_documents(unit: WorkUnit, reading: Reading) -> Iterator[bytes | np.ndarray]:
    """Yield the non-empty documents of a unit: UTF-8 text, or ids below `reading.vocab_size` without separators."""
    reading.selection = unit.selection
    for piece in unit.pieces:
        try:
            for document in DOCUMENT_READERS[piece.kind][1](piece, reading):
                if unit.selection.sample >= 1 or unit.selection.is_sampled(document_content(document)):
                    yield document
                else:
                    reading.n_filtered += 1
        except OSError as error:
            raise BadInput(f"can't read {piece.path}: {error.strerror or error}") from error


def document_content(document: bytes | np.ndarray) -> bytes:
    """What a document's hash is taken of: its text, or its ids as 4 bytes each."""
    return document if isinstance(document, bytes) else document.astype("<u4").tobytes()


DOCUMENT_READERS: dict[str, tuple[Callable, Callable]] = {
    "text": (text.split_text, text.text_documents),
    "jsonl": (text.split_json_lines, text.json_documents),
    "csv": (delimited.split_csv, delimited.csv_documents),
    "parquet": (parquet.split_parquet, parquet.parquet_documents),
    "parquet ids": (parquet.split_parquet, parquet.parquet_documents),
    "arrow": (arrow.split_arrow, arrow.arrow_documents),
    "arrow ids": (arrow.split_arrow, arrow.arrow_documents),
    "tar": (archives.split_tar, archives.tar_documents),
    "samples": (archives.split_tar, archives.tar_samples),
    "zip": (archives.split_zip, archives.zip_documents),
    "tfds": (tfdsets.split_tfds, tfdsets.tfds_documents),
    "tokens": (tokenfiles.split_tokens, tokenfiles.token_documents),
    "megatron": (megatron.split_megatron, megatron.megatron_documents),
}
