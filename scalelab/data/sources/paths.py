"""The files of a source: globs, folders by save_to_disk, and the kind of each by its name."""

import collections
import glob
import os
import pathlib
import re
from typing import Any

from scalelab.data.read import archives, delimited, foreign, megatron
from scalelab.data.read.files import inner_name
from scalelab.data.read.tables import arrow, columns, json_array, parquet
from scalelab.errors import BadInput, nearest_hint


def source_name(spec: str) -> str:
    """Derive a name from a path: its stem, or the nearest folder that is not a glob."""
    for part in reversed(pathlib.PurePath(spec.split(",")[0].strip()).parts):
        word = re.sub(r"[^\w-]+", "-", part.split(".")[0]).strip("-")
        if word and not glob.has_magic(part):
            return word
    return "data"


def list_files(spec: str) -> list[str]:
    """The files of globs and folders separated by commas, sorted; each once. BadInput for a pattern without a file."""
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
    files = [os.path.realpath(path) for path in match_files(expanded)]
    if not files:
        parent = pathlib.Path(expanded).parent
        beside = [path.name for path in parent.iterdir()] if parent.is_dir() else []
        raise BadInput(
            f"--source={pattern} matches no file{nearest_hint(os.path.basename(expanded), beside) if beside else ''}"
        )
    return files


def match_files(pattern: str) -> list[str]:
    """The files of a name or a glob; not those that it reaches by a link to a folder above the link."""
    matches = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
    return [path for path in matches if os.path.isfile(path) and not _goes_back(path)]


def _goes_back(path: str) -> bool:
    """Whether a folder of a path is a link to one that holds it: below it everything would be found again."""
    for folder in pathlib.Path(os.path.abspath(path)).parents:
        if folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve()):
            return True
    return False


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
        return "json array" if json_array.is_json_array(path) else "jsonl"
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
