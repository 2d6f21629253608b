"""Ready-made tokens in one flat file: nanoGPT's (raw uint16), llm.c's (a header of 256 int32, then the ids), numpy's.

A separator ends a document, or stands before it (llm.c): both cut the stream into the same documents; empty ones are
dropped. If no separator comes for CUT_TOKENS, the stream is cut at a multiple of CUT_TOKENS.
"""

import itertools
import os
import tokenize
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from scalelab.data.read.reading import Piece, Reading
from scalelab.data.tokenizers.tokenizer import check_ids
from scalelab.errors import BadInput
from scalelab.untrusted.files import open_file

CUT_TOKENS = 2**20
HEADER_NUMBERS = 256  # int32
TOKEN_FILE_MAGIC = {20240520: (1, "<u2"), 20240801: (7, "<u4")}  # llm.c: GPT-2 and Llama 3 ids; magic -> version, type
LOOKED_AT, WINDOWS = 2**14, 8  # numbers read at each of 8 places to detect wider types: one place may be all zeros
NUMPY_MAGIC = b"\x93NUMPY"  # first bytes of a file by numpy.save


class TokenLayout(NamedTuple):
    """Layout of ids in a file: their type, the byte where they begin, their number."""

    dtype: str
    start: int
    n_tokens: int


def split_tokens(path: str, unit_bytes: int, reading: Reading) -> Iterator[tuple[Piece, int]]:
    """Split into pieces of about `unit_bytes` with their sizes."""
    layout = read_token_layout(path, reading.vocab_size)
    width = np.dtype(layout.dtype).itemsize
    step = max(1, unit_bytes // width // CUT_TOKENS) * CUT_TOKENS
    for start in range(0, layout.n_tokens, step):
        stop = min(start + step, layout.n_tokens)
        yield Piece("tokens", path, start, stop), (stop - start) * width


def read_token_layout(path: str, vocab_size: int) -> TokenLayout:
    """The layout of a file, from its header or, without one, from the vocabulary: uint16 up to 65,536 ids, else uint32.

    Raises BadInput for a header that disagrees with the file's size, and for numbers of a wider type.
    """
    size = os.path.getsize(path)
    if path.endswith(".npy"):
        return _numpy_layout(path, size)
    with open_file(path, follow=True) as file:
        head = np.frombuffer(file.read(4 * HEADER_NUMBERS)[: size // 4 * 4], "<i4")
    if len(head) and int(head[0]) in TOKEN_FILE_MAGIC:
        return _declared(path, head, size)
    layout = TokenLayout("<u2" if vocab_size <= 2**16 else "<u4", 0, size // (2 if vocab_size <= 2**16 else 4))
    if head.tobytes().startswith(NUMPY_MAGIC):
        raise BadInput(f"{path} begins with {NUMPY_MAGIC!r}: numpy.save wrote it; name it .npy, and it is read")
    if size % np.dtype(layout.dtype).itemsize:
        raise BadInput(
            f"{path} has {size} bytes, which is not a whole number of {np.dtype(layout.dtype).name} ids "
            f"(vocabulary {vocab_size})"
        )
    _refuse_wider(path, layout)
    return layout


def _numpy_layout(path: str, size: int) -> TokenLayout:
    """The layout of an array by numpy.save: whole numbers of any width, in one dimension. BadInput for another."""
    try:
        with open_file(path, follow=True) as file, warnings.catch_warnings():
            version = np.lib.format.read_magic(file)
            warnings.simplefilter("ignore")  # a header of Python 2 is read all the same
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            start = file.tell()
    except (ValueError, OSError, SyntaxError, tokenize.TokenError) as error:  # the header is a Python literal
        raise BadInput(f"{path} is not an array by numpy.save: {str(error).splitlines()[0]}") from error
    if dtype.kind not in "iu":
        raise BadInput(f"{path} holds {dtype}, not token ids; text is read from JSON lines or parquet")
    if len(shape) != 1:
        raise BadInput(
            f"{path} has the shape {shape}; ids of one stream are read, each document with its separator: "
            "numpy.save(path, array.reshape(-1))"
        )
    if start + shape[0] * dtype.itemsize != size:
        raise BadInput(
            f"{path}: the header declares {shape[0]} ids, which with it are {start + shape[0] * dtype.itemsize} bytes; "
            f"the file has {size}"
        )
    return TokenLayout(dtype.str, start, shape[0])


def _declared(path: str, head: np.ndarray, size: int) -> TokenLayout:
    version, dtype = TOKEN_FILE_MAGIC[int(head[0])]
    if len(head) < HEADER_NUMBERS:
        raise BadInput(
            f"{path} begins like an llm.c file, but its {size} bytes don't hold the header of {4 * HEADER_NUMBERS}"
        )
    if head[1] != version:
        raise BadInput(f"{path}: magic {head[0]} with version {head[1]} at byte 4; this reads version {version}")
    width, n_tokens = np.dtype(dtype).itemsize, int(head[2])
    declared = 4 * HEADER_NUMBERS + width * n_tokens
    if declared != size:
        raise BadInput(
            f"{path}: the header declares {n_tokens} tokens at byte 8, which with it are {declared} bytes; "
            f"the file has {size}"
        )
    return TokenLayout(dtype, 4 * HEADER_NUMBERS, n_tokens)


def _refuse_wider(path: str, layout: TokenLayout) -> None:
    """Raise BadInput if all high halves are zero: int64 or int32 ids read as a narrower type."""
    width = np.dtype(layout.dtype).itemsize
    if not layout.n_tokens:
        return
    numbers = np.memmap(path, layout.dtype, "r")
    steps = range(0, layout.n_tokens, max(LOOKED_AT, layout.n_tokens // WINDOWS // 4 * 4))
    sample = np.concatenate([numbers[start : start + LOOKED_AT] for start in steps])
    for wide in (8, 4):
        columns = sample[: len(sample) // (wide // width) * (wide // width)].reshape(-1, wide // width)
        if wide > width and len(columns) >= 4 and columns[:, 0].any() and not columns[:, 1:].any():
            raise BadInput(
                f"{path} holds {8 * wide}-bit numbers, not {8 * width}-bit ones: from byte {width} on "
                f"{wide // width - 1} of every {wide // width} are 0; "
                f"numpy's fromfile(f, 'i{wide}').astype('u{width}').tofile(g) converts it"
            )


def token_documents(piece: Piece, reading: Reading) -> Iterator[np.ndarray]:
    """The documents that begin in a range of a file, without separators; `piece.start` is a multiple of CUT_TOKENS."""
    layout = read_token_layout(piece.path, reading.vocab_size)
    if not layout.n_tokens:
        return
    tokens = np.memmap(piece.path, layout.dtype, "r", layout.start, (layout.n_tokens,))
    boundaries = range(piece.start, piece.stop, CUT_TOKENS)
    cuts = [_cut(tokens, boundary, reading.separator) for boundary in [*boundaries, piece.stop]]
    for start, stop in itertools.pairwise(cuts):
        block = np.array(tokens[start:stop])
        where = _where(piece.path, layout, start)
        check_ids(block, reading.vocab_size, where)
        yield from split_at_separator(block, reading.separator)


def _where(path: str, layout: TokenLayout, start: int):
    width = np.dtype(layout.dtype).itemsize
    return lambda i: f"{path}, token {start + i} (byte {layout.start + (start + i) * width}): "


def _cut(tokens: np.ndarray, boundary: int, separator: int) -> int:
    """The first place from `boundary` on after a separator or at the end; `boundary` if none comes for CUT_TOKENS."""
    if boundary == 0 or boundary >= len(tokens):
        return min(boundary, len(tokens))
    window = tokens[boundary - 1 : boundary - 1 + CUT_TOKENS]
    separators = np.flatnonzero(window == separator)
    if len(separators):
        return boundary + int(separators[0])
    return boundary if len(window) == CUT_TOKENS else len(tokens)


def split_at_separator(block: np.ndarray, separator: int) -> Iterator[np.ndarray]:
    """The non-empty stretches between separators."""
    ends = np.flatnonzero(block == separator)
    for start, stop in zip([0, *(ends + 1).tolist()], [*ends.tolist(), len(block)], strict=True):
        if stop > start:
            yield block[start:stop]
