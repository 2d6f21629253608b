"""Kinds of files that can't be read as text, by name and first bytes, with advice on each."""

import re
from typing import NamedTuple

from scalelab.errors import BadInput
from scalelab.untrusted.files import open_file

HEAD_BYTES = 32  # bytes


class ForeignKind(NamedTuple):
    """A kind of file, the endings of its names, its first bytes, and how to convert it into a readable one."""

    what: str
    endings: tuple[str, ...]
    begins: bytes  # a regular expression
    instead: str


FOREIGN_KINDS = (
    ForeignKind("an Arrow table", (".arrow", ".feather", ".ipc"), rb"ARROW1\x00\x00",
         "write it as parquet, which is read "
         "(datasets: load_dataset('arrow', data_files=F)['train'].to_parquet('x.parquet'))"),
    ForeignKind("a numpy array", (".npy", ".npz"), rb"\x93NUMPY",
         "token ids: array.astype('uint16').tofile('x.bin') with --tokenizer=ids:V; text: write it as JSON lines"),
    ForeignKind("xz-packed", (".xz", ".lzma"), rb"\xfd7zXZ\x00", "xz -d unpacks it; .gz and .zst are read packed"),
    ForeignKind("bzip2-packed", (".bz2",), rb"BZh[1-9]1AY&SY", "bzip2 -d unpacks it; .gz and .zst are read packed"),
    ForeignKind("lz4-packed", (".lz4",), rb"\x04\x22\x4d\x18", "lz4 -d unpacks it; .gz and .zst are read packed"),
    ForeignKind("a 7z, rar or brotli archive", (".7z", ".rar", ".br"), rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07",
         "unpack it; zip and tar are read packed"),
    ForeignKind("gzip-packed", (), rb"\x1f\x8b", "name it .gz, and it is read packed"),
    ForeignKind("zstandard-packed", (), rb"\x28\xb5\x2f\xfd", "name it .zst, and it is read packed"),
    ForeignKind("a parquet table", (), rb"PAR1\x15", "name it .parquet, and it is read by column"),
    ForeignKind("pickled, or weights", (".pkl", ".pickle", ".pt", ".pth", ".safetensors", ".ckpt"), rb"\x80[\x02-\x05]",
         "no pickle is opened here; write its texts as JSON lines"),
    ForeignKind("a zip archive or an office document", (".docx", ".xlsx", ".pptx", ".odt", ".epub"), rb"PK\x03\x04",
         "extract its text; a plain zip of texts is to be named .zip"),
    ForeignKind("a PDF", (".pdf",), rb"%PDF-", "extract its text"),
    ForeignKind("a TFRecord", (".tfrecord", ".tfrecords", ".array_record"), rb"(?!)",
         "tfds:NAME@DIR reads whole data sets"),
    ForeignKind("an HDF5, Avro, ORC or SQLite file", (".h5", ".hdf5", ".avro", ".orc", ".sqlite", ".db"),
         rb"\x89HDF|Obj\x01|SQLite format 3\x00", "write its texts as JSON lines or parquet"),
)  # fmt: skip


def check_not_foreign(where: str, begins: bytes = b"") -> None:
    """Raise BadInput if a file's name (packed or not) or first bytes are those of a kind without text."""
    name = where.lower().removesuffix(".gz").removesuffix(".zst")
    for kind in FOREIGN_KINDS:
        if name.endswith(kind.endings) or re.match(kind.begins, begins):
            raise BadInput(f"{where} is {kind.what}, not text: {kind.instead}")


def check_text_file(path: str) -> None:
    """Apply `check_not_foreign` to a file on disk that would be read as text."""
    try:
        with open_file(path, follow=True) as file:
            begins = file.read(HEAD_BYTES)
    except OSError as error:
        raise BadInput(f"can't read {path}: {error.strerror or error}") from error
    check_not_foreign(path, b"" if path.endswith((".gz", ".zst")) else begins)
