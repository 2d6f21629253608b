"""Parse `--source=[NAME=]SPEC` into named parts, their files, and the units of work that workers read.

The result depends neither on the number of workers nor on the order of sources, globs or folder listings: parts are
sorted by name, files by resolved path, and a file that is matched twice (by two globs, through a link) counts once.
"""

import dataclasses
import glob
import itertools
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from scalelab.data.read import archives, delimited, foreign, megatron, parquet, text, tfdsets, tokenfiles
from scalelab.data.read.files import PACKED_ENDINGS, inner_name
from scalelab.data.read.reading import Piece, Reading
from scalelab.errors import BadInput, nearest_hint

NAMED_SPEC = re.compile(r"([A-Za-z0-9][\w.-]*)=(.+)")
UNITS_PER_CORPUS = 256  # least number of units, within the limits of UNIT_BYTES
UNIT_BYTES = (2**20, 2**26)  # smallest and largest unit: a killed unit is read again from its start
TOKEN_KINDS = ("tokens", "megatron")  # kinds that need no tokenizer


@dataclasses.dataclass(frozen=True)
class SourcePart:
    """A named source: its spec, and the kinds and paths of its files, in order.

    `split`: "train" or "val" if all of its documents belong to one side; "": each document's hash decides.
    """

    name: str
    spec: str
    kinds: tuple[str, ...]
    paths: tuple[str, ...]
    split: str = ""

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

    @property
    def name(self) -> str:
        return f"{self.part}{'@val' * (self.split == 'val')}-{self.number:06d}"


def parse_sources(sources: Sequence[str]) -> list[SourcePart]:
    """Parse `--source` flags as parts, sorted by name. Raises BadInput: no file, no name, a name twice."""
    parts = sorted((_parse_part(source) for source in sources), key=lambda part: part.name)
    for before, after in itertools.pairwise(parts):
        if before.name == after.name:
            raise BadInput(
                f"two sources are named {before.name!r}: name them apart, --source={before.name}1={before.spec} "
                f"--source={before.name}2={after.spec}"
            )
    return parts


def _parse_part(source: str) -> SourcePart:
    named = NAMED_SPEC.fullmatch(source)
    if named and not os.path.exists(source):
        name, spec = named.groups()
    else:
        name, spec = "", source
    if spec.startswith("tfds:"):
        name = name or re.split(r"[/:@]", spec[5:])[0]
        return SourcePart(name, spec, ("tfds",), (tfdsets.find_tfds(spec[5:]),))
    paths = _files(spec)
    return SourcePart(name or _name(spec), spec, tuple(file_kind(path) for path in paths), tuple(paths))


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
        raise BadInput(f"--source={pattern} is a folder; did you mean {pattern.rstrip('/')}/**/*.txt?")
    matches = [expanded] if os.path.isfile(expanded) else glob.glob(expanded, recursive=True)
    files = [os.path.realpath(path) for path in matches if os.path.isfile(path)]
    if not files:
        parent = pathlib.Path(expanded).parent
        beside = [path.name for path in parent.iterdir()] if parent.is_dir() else []
        raise BadInput(
            f"--source={pattern} matches no file{nearest_hint(os.path.basename(expanded), beside) if beside else ''}"
        )
    return files


def file_kind(path: str) -> str:
    """A file's kind by its name; `.bin` with an `.idx` beside it is Megatron's. BadInput for a file without text."""
    inner = inner_name(path)
    if archives.is_tar(path):
        return "tar"
    if inner.endswith(archives.JSON_ENDINGS):
        return "jsonl"
    if path.endswith(".bin"):
        return "megatron" if os.path.isfile(megatron.index_path(path)) else "tokens"
    if inner != path and inner.endswith((".parquet", ".zip", ".bin")):
        raise BadInput(f"{path}: unpack it first; only text, JSON lines and tar are read packed")
    if delimited.is_delimited(path):
        return "csv"
    kind = next((kind for kind in ("parquet", "zip") if path.endswith(f".{kind}")), "text")
    if kind == "text":
        foreign.check_text_file(path)
    return kind


def part_bytes(part: SourcePart) -> int:
    """Bytes of a part's files on disk, packed or not."""
    files = zip(part.kinds, part.paths, strict=True)
    return sum(tfdsets.tfds_split_bytes(path) if kind == "tfds" else os.path.getsize(path) for kind, path in files)


def part_notes(part: SourcePart) -> Iterator[str]:
    """Notes to the user on how these files are read."""
    files = list(zip(part.kinds, part.paths, strict=True))
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
    pieces: list[Piece] = []
    unit_bytes = number = 0
    for kind, path in zip(part.kinds, part.paths, strict=True):
        for piece, n_bytes in DOCUMENT_READERS[kind][0](path, wanted, reading):
            pieces.append(piece)
            unit_bytes += n_bytes
            if unit_bytes >= wanted:
                yield WorkUnit(part.name, number, tuple(pieces), unit_bytes, part.split)
                pieces, unit_bytes, number = [], 0, number + 1
    if pieces:
        yield WorkUnit(part.name, number, tuple(pieces), unit_bytes, part.split)


def unit_documents(unit: WorkUnit, reading: Reading) -> Iterator[bytes | np.ndarray]:
    """Yield the non-empty documents of a unit: UTF-8 text, or ids below `reading.vocab_size` without separators."""
    for piece in unit.pieces:
        try:
            yield from DOCUMENT_READERS[piece.kind][1](piece, reading)
        except OSError as error:
            raise BadInput(f"can't read {piece.path}: {error.strerror or error}") from error


DOCUMENT_READERS: dict[str, tuple[Callable, Callable]] = {
    "text": (text.split_text, text.text_documents),
    "jsonl": (text.split_json_lines, text.json_documents),
    "csv": (delimited.split_csv, delimited.csv_documents),
    "parquet": (parquet.split_parquet, parquet.parquet_documents),
    "tar": (archives.split_tar, archives.tar_documents),
    "zip": (archives.split_zip, archives.zip_documents),
    "tfds": (tfdsets.split_tfds, tfdsets.tfds_documents),
    "tokens": (tokenfiles.split_tokens, tokenfiles.token_documents),
    "megatron": (megatron.split_megatron, megatron.megatron_documents),
}
