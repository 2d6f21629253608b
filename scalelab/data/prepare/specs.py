"""Parse `--source=[NAME=]SPEC` into named parts, their files, and the units of work that workers read.

The result depends neither on the number of workers nor on the order of sources, globs or folder listings: parts are
sorted by name, files by resolved path, and a file that is matched twice (by two globs, through a link) counts once.
"""

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from scalelab.data.read import archives, delimited, megatron, text, tfdsets, tokenfiles
from scalelab.data.read.files import PACKED_ENDINGS
from scalelab.data.read.reading import Piece, Reading
from scalelab.data.read.selection import EVERYTHING, Selection, split_spec
from scalelab.data.read.tables import arrow, json_array, parquet
from scalelab.data.sources import remote
from scalelab.data.sources.paths import file_kind, list_files, source_name
from scalelab.errors import BadInput

NAMED_SPEC = re.compile(r"([A-Za-z0-9][\w.-]*)=(.+)")
UNITS_PER_CORPUS = 256  # least number of units, within the limits of UNIT_BYTES
UNIT_BYTES = (2**20, 2**26)  # smallest and largest unit: a killed unit is read again from its start
TOKEN_KINDS = ("tokens", "megatron", "parquet ids", "arrow ids")  # kinds that need no tokenizer
FIELDLESS_KINDS = ("text", "tokens", "megatron")  # kinds without keys and filters


@dataclasses.dataclass(frozen=True)
class SourcePart:
    """A named source: its spec, the kinds and paths of its files, in order, and which records of them are taken.

    `split`: "train" or "val" if all of its documents belong to one side; "": each document's hash decides.
    """

    name: str
    spec: str
    kinds: tuple[str, ...]
    paths: tuple[str, ...]
    places: str = ""  # the spec without its selection
    selection: Selection = EVERYTHING
    origins: tuple[str, ...] = ()  # of files that were downloaded: their addresses, with a mark of the content
    split: str = ""

    @property
    def flag(self) -> str:
        """The option that names the part."""
        return f"--val-source={self.spec}" if self.split == "val" else f"--source={self.spec}"

    @property
    def key(self) -> str:
        """The part's name in the work: a training and a validation source may share a name."""
        return f"{self.name}@val" if self.split == "val" else self.name


class WorkUnit(NamedTuple):
    """The work of one worker at a time: a part, a number in it, pieces of files, their bytes."""

    part: str
    number: int
    pieces: tuple[Piece, ...]
    n_bytes: int
    split: str = ""
    selection: Selection = EVERYTHING

    @property
    def name(self) -> str:
        return f"{self.part}{'@val' * (self.split == 'val')}-{self.number:06d}"


def parse_sources(sources: Sequence[str], text_key: str = "text") -> list[SourcePart]:
    """Parse `--source` flags as parts, sorted by name. Raises BadInput with all faults: no file, no name, a name twice.

    `text_key`: the key of a source that has none of its own.
    """
    parts, faults = find_parts(sources, text_key)
    raise_faults(faults)
    return parts


def raise_faults(faults: Sequence[str]) -> None:
    """Raise BadInput for faults, if there are any, all in one line."""
    if faults:
        raise BadInput(faults[0] if len(faults) == 1 else f"{len(faults)} faults: {'; '.join(faults)}")


def find_parts(sources: Sequence[str], text_key: str, split: str = "") -> tuple[list[SourcePart], list[str]]:
    """(parts, faults) of `--source` or, with split "val", `--val-source` flags; `split`: as in `SourcePart`."""
    parts, faults = [], list[str]()
    option = "--val-source" if split == "val" else "--source"
    for source in sources:
        try:
            parts.append(dataclasses.replace(_parse_part(source, text_key), split=split))
        except BadInput as fault:
            faults.append(str(fault).replace("--source=", f"{option}="))
    parts.sort(key=lambda part: part.name)
    for before, after in itertools.pairwise(parts):
        if before.name == after.name:
            faults.append(
                f"two sources are named {before.name!r}: name them apart, {option}={before.name}1={before.spec} "
                f"{option}={before.name}2={after.spec}"
            )
    return parts, faults


def _parse_part(source: str, text_key: str) -> SourcePart:
    named = NAMED_SPEC.fullmatch(source)
    if named and not os.path.exists(source):
        name, spec = named.groups()
    else:
        name, spec = "", source
    places, selection = (spec, EVERYTHING) if os.path.exists(os.path.expanduser(spec)) else split_spec(spec)
    if places.startswith("tfds:"):
        name = name or re.split(r"[/:@]", places[5:])[0]
        return SourcePart(name, spec, ("tfds",), (tfdsets.find_tfds(places[5:]),), places, selection)
    fetched = remote.fetch(places) if remote.is_remote(places) else []
    paths = [file.path for file in fetched] or list_files(places)
    kinds = tuple(file_kind(path, selection.key or text_key) for path in paths)
    if selection._replace(sample=1.0).describe():
        for kind, path in zip(kinds, paths, strict=True):
            if kind in FIELDLESS_KINDS:
                Reading(selection=selection).check_no_fields(path)
    name = name or source_name(places.partition("?")[0] if fetched else places)
    return SourcePart(name, spec, kinds, tuple(paths), places, selection, tuple(file.origin for file in fetched))


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
        if kind in ("tar", "csv", "json array") or (kind in ("text", "jsonl") and path.endswith(PACKED_ENDINGS))
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
                yield WorkUnit(part.name, number, tuple(pieces), unit_bytes, part.split, part.selection)
                pieces, unit_bytes, number = [], 0, number + 1
    if pieces:
        yield WorkUnit(part.name, number, tuple(pieces), unit_bytes, part.split, part.selection)


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
    "json array": (json_array.split_json_array, json_array.array_documents),
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
