"""Kinds of files that can't be read as text, by name and first bytes, with advice on each."""

import re
from typing import NamedTuple

from scalelab.data.read.files import PACKED_ENDINGS, inner_name
from scalelab.errors import BadInput
from scalelab.untrusted.files import open_file

HEAD_BYTES = 32  # bytes


class ForeignKind(NamedTuple):
    """A kind of file, the endings of its names, its first bytes, how to convert it, and what is wanted instead."""

    what: str
    endings: tuple[str, ...]
    begins: bytes  # a regular expression
    instead: str
    wanted: str = "text"


FOREIGN_KINDS = (
    ForeignKind("text in UTF-16 or UTF-32", (), rb"\xff\xfe|\xfe\xff|\x00\x00\xfe\xff",
         "iconv -f UTF-16 -t UTF-8 (or UTF-32) converts it", wanted="UTF-8"),
    ForeignKind("a Feather table of version 1", (), rb"FEA1", "write it as parquet or Arrow, which are read"),
    ForeignKind("an Arrow table", (), rb"ARROW1\x00\x00", "name it .arrow, and it is read by column"),
    ForeignKind("a numpy array", (), rb"\x93NUMPY", "name it .npy: token ids are read"),
    ForeignKind("an archive of numpy arrays", (".npz",), rb"(?!)", "write the token ids as one array in x.npy"),
    ForeignKind("xz-packed", (".lzma",), rb"\xfd7zXZ\x00", "name it .xz, and it is read packed"),
    ForeignKind("bzip2-packed", (), rb"BZh[1-9]1AY&SY", "name it .bz2, and it is read packed"),
    ForeignKind("lz4-packed", (".lz4",), rb"\x04\x22\x4d\x18", "lz4 -d unpacks it; gz, zst, xz and bz2 are read"),
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
    ForeignKind("an image", (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ico"),
         rb"\x89PNG|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP|II\*\x00|MM\x00\*",
         "no text is in it; of a tar of WebDataset x.tar#txt reads the captions"),
    ForeignKind("audio or video", (".mp3", ".wav", ".flac", ".ogg", ".m4a", ".mp4", ".mkv", ".webm", ".avi", ".mov"),
         rb"ID3|fLaC|OggS|RIFF....(?:WAVE|AVI )|\x1aE\xdf\xa3|....ftyp", "write its transcripts as text or JSON lines"),
    ForeignKind("a program", (".exe", ".so", ".dll", ".dylib", ".o", ".a", ".pyc", ".class", ".wasm"),
         rb"\x7fELF|MZ\x90|\xcf\xfa\xed\xfe|\x00asm|!<arch>", "only its source is text"),
    ForeignKind("a model's weights", (".gguf", ".ggml", ".onnx"), rb"GGUF", "no text is in it"),
    ForeignKind("a shard of MosaicML Streaming", (".mds",), rb"(?!)", "write its texts as JSON lines or parquet"),
    ForeignKind("an HDF5, Avro, ORC or SQLite file", (".h5", ".hdf5", ".avro", ".orc", ".sqlite", ".db"),
         rb"\x89HDF|Obj\x01|SQLite format 3\x00", "write its texts as JSON lines or parquet"),
)  # fmt: skip


def check_not_foreign(where: str, begins: bytes = b"") -> None:
    """Raise BadInput if a file's name (packed or not) or first bytes are those of a kind without text."""
    name = inner_name(where.lower())
    for kind in FOREIGN_KINDS:
        if name.endswith(kind.endings) or re.match(kind.begins, begins, re.DOTALL):
            raise BadInput(f"{where} is {kind.what}, not {kind.wanted}: {kind.instead}")


def check_text_file(path: str) -> None:
    """Apply `check_not_foreign` to a file on disk that would be read as text."""
    try:
        with open_file(path, follow=True) as file:
            begins = file.read(HEAD_BYTES)
    except OSError as error:
        raise BadInput(f"can't read {path}: {error.strerror or error}") from error
    check_not_foreign(path, b"" if path.endswith(PACKED_ENDINGS) else begins)
