"""Read TensorFlow Datasets without TensorFlow: prepared array_record files, by `tfds:NAME[/CONFIG][:SPLIT][@DIR]`.

A data set that is prepared under DIR (else $TFDS_DATA_DIR, else ~/tensorflow_datasets) is read without the code that
made it. Another one is first downloaded and prepared by tensorflow_datasets. Many data sets need TensorFlow or Beam for
that, and some are unknown without them: prepare those elsewhere and name the folder.
"""

import contextlib
import functools
import os
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from scalelab.data.read.reading import Piece, Reading
from scalelab.data.read.selection import find_field
from scalelab.errors import BadInput, nearest_hint, needs_package
from scalelab.untrusted.documents import read_document

SPLIT_MARK = "#"  # separator of a folder and a split, in neither of which it occurs
RECORDS_PER_READ = 256
TFDS_SPEC = re.compile(r"(?P<name>[\w.-]+(?:/[\w.-]+)?)(?::(?P<split>[^@]+))?(?:@(?P<folder>.+))?")
INSTALL_PACKAGES = {"tensorflow": "tensorflow-cpu", "apache_beam": "apache-beam"}  # module -> package to install


def find_tfds(spec: str) -> str:
    """Find "FOLDER#SPLIT" of the data set `NAME[/CONFIG][:SPLIT][@DIR]`; prepares it if needed."""
    parts = TFDS_SPEC.fullmatch(spec)
    if not parts:
        raise BadInput(f"tfds:{spec} is not tfds:NAME[/CONFIG][:SPLIT][@DIR]; e.g. tfds:lambada:train@/data/tfds")
    name, split = parts["name"], parts["split"] or "train"
    root = pathlib.Path(parts["folder"] or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    folder = _prepared(root, name) or _prepare(root, name)
    builder = _open(str(folder))
    known = list(builder.info.splits)
    if re.split(r"[\[+]", split)[0] not in known:
        raise BadInput(f"tfds:{spec}: {folder} has no split {split!r}{nearest_hint(split, known)}")
    _source(str(folder), split)
    return f"{folder.resolve()}{SPLIT_MARK}{split}"


def _prepared(root: pathlib.Path, name: str) -> pathlib.Path | None:
    """Folder of the latest version under root/NAME[/CONFIG]; the config may be left out if there is only one."""
    places = {path.parent for path in [*(root / name).glob("*/dataset_info.json")]}
    if not places and "/" not in name:
        places = {path.parent for path in (root / name).glob("*/*/dataset_info.json")}
        configs = sorted({place.parent.name for place in places})
        if len(configs) > 1:
            raise BadInput(
                f"tfds:{name}: {root / name} holds the configs {', '.join(configs)}; name one: tfds:{name}/{configs[0]}"
            )
    return max(places, key=lambda place: [int(part) for part in re.findall(r"\d+", place.name)], default=None)


def _prepare(root: pathlib.Path, name: str) -> pathlib.Path:
    tfds = _tensorflow_datasets()
    tfds.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # tensorflow_datasets prints its progress
            builder = tfds.builder(name, data_dir=root, file_format="array_record")
            builder.download_and_prepare()
    except ModuleNotFoundError as error:
        _needs(name, root, error)
    except tfds.core.DatasetNotFoundError as error:
        raise BadInput(
            f"tfds:{name} is not prepared under {root}, and tensorflow_datasets {tfds.__version__} knows no such data "
            f"set without TensorFlow (with it: pip install tensorflow-cpu; "
            f"tfds build {name} --file_format=array_record)"
        ) from error
    except Exception as error:  # a builder may raise anything: downloads, checksums, its own mistakes
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(f"tfds:{name}: preparing it under {root} failed: {reason[:300]}") from error
    return pathlib.Path(builder.data_path)


def _tensorflow_datasets() -> Any:
    try:
        import tensorflow_datasets
    except ModuleNotFoundError as error:  # it needs importlib_resources, which its requirements lack
        package = {"importlib_resources": "importlib-resources"}.get(error.name or "", "tensorflow-datasets")
        raise needs_package("a data set tfds:NAME", package) from None
    return tensorflow_datasets


def _needs(name: str, root: pathlib.Path, error: ModuleNotFoundError) -> NoReturn:
    module = (error.name or "").split(".")[0]
    raise BadInput(
        f"tfds:{name} is not prepared under {root}, and its own preparation needs {module}: "
        f"in an environment of its own, pip install tensorflow-datasets {INSTALL_PACKAGES.get(module, module)}; "
        f"tfds build {name} --file_format=array_record"
    ) from error


def tfds_split_bytes(path: str) -> int:
    """Bytes of a split's records, estimated as its share of the data set."""
    folder, _, name = path.rpartition(SPLIT_MARK)
    info = _open(folder).info
    n_all = sum(part.num_examples for part in info.splits.values())
    return max(1, info.dataset_size * len(_source(folder, name)) // max(n_all, 1))


def split_tfds(path: str, unit_bytes: int, _: Reading) -> Iterator[tuple[Piece, int]]:
    """Split into runs of records of about `unit_bytes`, with their sizes."""
    folder, _sign, name = path.rpartition(SPLIT_MARK)
    n_records, size = len(_source(folder, name)), tfds_split_bytes(path)
    step = max(1, n_records * unit_bytes // size)
    for start in range(0, n_records, step):
        stop = min(start + step, n_records)
        yield Piece("tfds", path, start, stop), size * (stop - start) // n_records


def tfds_documents(piece: Piece, reading: Reading) -> Iterator[bytes]:
    """The non-empty texts of feature `reading.key` in records `piece.start` to `piece.stop`."""
    folder, _, name = piece.path.rpartition(SPLIT_MARK)
    source = _source(folder, name)
    for first in range(piece.start, piece.stop, RECORDS_PER_READ):
        for i, record in enumerate(
            source.__getitems__(list(range(first, min(first + RECORDS_PER_READ, piece.stop)))), first
        ):
            place = functools.partial(_record, piece.path, i)
            if not reading.is_chosen(_decoded(record) if reading.selection.filters else record, place):
                continue
            try:
                value = find_field(record, reading.key)
            except KeyError:
                hint = nearest_hint(reading.key, list(record) if isinstance(record, dict) else [])
                raise BadInput(f"{piece.path} has no feature {reading.key!r} ({reading.key_origin}){hint}") from None
            document = value.encode() if isinstance(value, str) else value
            if not isinstance(document, bytes):
                raise BadInput(
                    f"{piece.path}: feature {reading.key!r} is {type(value).__name__}, not text ({reading.key_origin})"
                )
            if document and reading.is_text(document, place):
                yield document


def _decoded(record: Any) -> Any:
    """A record with texts and numbers of Python, which filters compare."""
    if isinstance(record, dict):
        return {key: _decoded(value) for key, value in record.items()}
    if isinstance(record, bytes):
        return record.decode(errors="replace")
    return record.item() if isinstance(record, np.generic) else record


def _record(path: str, number: int) -> str:
    return f"{path}, record {number}"


@functools.lru_cache(maxsize=4)
def _open(folder: str) -> Any:
    tfds = _tensorflow_datasets()
    _refuse_foreign_code(pathlib.Path(folder) / "features.json")
    return tfds.builder_from_directory(folder)


def _refuse_foreign_code(path: pathlib.Path) -> None:
    """Raise BadInput if a data set names feature classes outside tensorflow_datasets, which would import them."""
    try:
        features = read_document(path, follow=True) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} can't be read: {str(error).splitlines()[0]}") from error
    todo = [features]
    while todo:
        node = todo.pop()
        todo += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        for key in ("pythonClassName", "type") if isinstance(node, dict) else ():
            name = node.get(key)
            if isinstance(name, str) and "." in name and not name.startswith("tensorflow_datasets.core."):
                raise BadInput(
                    f"{path} names the class {name!r}: code that a data set's files name is not run; "
                    "write its texts as parquet"
                )


@functools.lru_cache(maxsize=4)
def _source(folder: str, name: str) -> Any:
    try:
        return _open(folder).as_data_source(split=name)
    except NotImplementedError:
        kind = _open(folder).info.file_format
        raise BadInput(
            f"{folder} holds {kind.value if kind else 'unknown'} files, which need TensorFlow to be read; "
            "prepare it again with --file_format=array_record"
        ) from None
    except (ValueError, OSError) as error:  # an invalid slice of a split, or a missing file
        raise BadInput(f"{folder}, split {name!r}: {str(error).splitlines()[0]}") from error
