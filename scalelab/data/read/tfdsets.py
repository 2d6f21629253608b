"""TensorFlow Datasets without TensorFlow: prepared array_record files, by `tfds:NAME[/CONFIG][:SPLIT][@DIR]`.

What lies prepared under DIR (else $TFDS_DATA_DIR, else ~/tensorflow_datasets) is read from there: the code that made it is
not needed. What doesn't is downloaded and prepared first, by tensorflow_datasets itself; many of its own data sets need
TensorFlow or Beam for that, once, and some are not even known without: prepare those elsewhere and name the folder.
"""

import contextlib
import functools
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

from scalelab.data.read.reading import Piece, Reading
from scalelab.errors import BadInput, nearest_hint

SPLIT_MARK = "#"  # between a folder and the split: neither holds one
RECORDS_PER_READ = 256  # read at once
TFDS_SPEC = re.compile(r"(?P<name>[\w.-]+(?:/[\w.-]+)?)(?::(?P<split>[^@]+))?(?:@(?P<folder>.+))?")
INSTALL_PACKAGES = {"tensorflow": "tensorflow-cpu", "apache_beam": "apache-beam"}  # module -> what installs it


def find_tfds(spec: str) -> str:
    """`NAME[/CONFIG][:SPLIT][@DIR]` -> "FOLDER#SPLIT" of a prepared data set, which is prepared now if it isn't yet."""
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
    """The folder of the latest version under root/NAME[/CONFIG]; of one config where none is named and there is only one."""
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
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # it says how far it is
            builder = tfds.builder(name, data_dir=root, file_format="array_record")
            builder.download_and_prepare()
    except ModuleNotFoundError as error:
        _needs(name, root, error)
    except tfds.core.DatasetNotFoundError as error:
        raise BadInput(
            f"tfds:{name} is not prepared under {root}, and tensorflow_datasets {tfds.__version__} knows no such data set "
            f"without TensorFlow (with it: pip install tensorflow-cpu; tfds build {name} --file_format=array_record)"
        ) from error
    except Exception as error:  # downloads, checksums, a builder's own mistakes
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(f"tfds:{name}: preparing it under {root} failed: {reason[:300]}") from error
    return pathlib.Path(builder.data_path)


def _needs(name: str, root: pathlib.Path, error: ModuleNotFoundError) -> NoReturn:
    module = (error.name or "").split(".")[0]
    raise BadInput(
        f"tfds:{name} is not prepared under {root}, and its own preparation needs {module}: in an environment of its own, "
        f"pip install tensorflow-datasets {INSTALL_PACKAGES.get(module, module)}; tfds build {name} --file_format=array_record"
    ) from error


def tfds_split_bytes(path: str) -> int:
    """Bytes of a split's records: its share of the data set's."""
    folder, _, name = path.rpartition(SPLIT_MARK)
    info = _open(folder).info
    n_all = sum(part.num_examples for part in info.splits.values())
    return max(1, info.dataset_size * len(_source(folder, name)) // max(n_all, 1))


def split_tfds(path: str, unit_bytes: int, _: Reading) -> Iterator[tuple[Piece, int]]:
    """Runs of records of about `unit_bytes`, with their sizes."""
    folder, _sign, name = path.rpartition(SPLIT_MARK)
    n_records, size = len(_source(folder, name)), tfds_split_bytes(path)
    step = max(1, n_records * unit_bytes // size)
    for start in range(0, n_records, step):
        stop = min(start + step, n_records)
        yield Piece("tfds", path, start, stop), size * (stop - start) // n_records


def tfds_documents(piece: Piece, reading: Reading) -> Iterator[bytes]:
    """The non-empty texts of feature `reading.text_key` of records `piece.start` to `piece.stop`."""
    folder, _, name = piece.path.rpartition(SPLIT_MARK)
    source = _source(folder, name)
    for first in range(piece.start, piece.stop, RECORDS_PER_READ):
        for i, record in enumerate(
            source.__getitems__(list(range(first, min(first + RECORDS_PER_READ, piece.stop)))), first
        ):
            if not isinstance(record, dict) or reading.text_key not in record:
                known = list(record) if isinstance(record, dict) else []
                raise BadInput(
                    f"{piece.path} has no feature {reading.text_key!r} (--text-key){nearest_hint(reading.text_key, known)}"
                )
            found = record[reading.text_key]
            document = found.encode() if isinstance(found, str) else found
            if not isinstance(document, bytes):
                raise BadInput(
                    f"{piece.path}: feature {reading.text_key!r} is {type(found).__name__}, not text (--text-key)"
                )
            if document and reading.is_text(document, functools.partial(_record, piece.path, i)):
                yield document


def _record(path: str, number: int) -> str:
    return f"{path}, record {number}"


@functools.lru_cache(maxsize=4)
def _open(folder: str) -> Any:
    import tensorflow_datasets as tfds

    _refuse_foreign_code(pathlib.Path(folder) / "features.json")
    return tfds.builder_from_directory(folder)


def _refuse_foreign_code(path: pathlib.Path) -> None:
    """BadInput where a data set's features are of classes that aren't tensorflow_datasets' own: it would import their modules."""
    try:
        features = json.loads(path.read_text()) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} can't be read: {str(error).splitlines()[0]}") from error
    left = [features]
    while left:
        each = left.pop()
        left += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        for key in ("pythonClassName", "type") if isinstance(each, dict) else ():
            name = each.get(key)
            if isinstance(name, str) and "." in name and not name.startswith("tensorflow_datasets.core."):
                raise BadInput(
                    f"{path} names the class {name!r}: code that a data set's files name is not run; write its texts as parquet"
                )


@functools.lru_cache(maxsize=4)
def _source(folder: str, name: str) -> Any:
    try:
        return _open(folder).as_data_source(split=name)
    except NotImplementedError:
        kind = _open(folder).info.file_format
        raise BadInput(
            f"{folder} holds {kind.value if kind else 'unknown'} files, which need TensorFlow to be read; prepare it again with "
            "--file_format=array_record"
        ) from None
    except (ValueError, OSError) as error:  # what is no slice of a split; a missing file
        raise BadInput(f"{folder}, split {name!r}: {str(error).splitlines()[0]}") from error
