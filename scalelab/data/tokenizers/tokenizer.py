"""Bytes -> tokens and back: a tokenizer is a name, a vocabulary size, two functions, and the id that ends every document.

Bits per byte of a loss in nats per token: loss / ln 2 / bytes_per_token, where bytes_per_token counts the bytes of the
documents over the tokens of the stream, separators included: the cost of ending a document is part of encoding it.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput

TOKENIZER_FILES = {"json": "tokenizer.json", "ranks": "tokenizer.tiktoken"}  # how a prepared folder keeps the two kinds
DEFAULT_SEPARATOR = 0  # of bytes, of synthetic text, and of what is trained here


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """`encode` maps one document to a 1-D array of ids below `vocab_size`, without the separator; `decode` any ids to bytes.

    `encode` raises ValueError where the library behind it gives up: tiktoken on half a million spaces in a row, a tokenizer.json
    without an unknown token on a letter that it lacks.

    `name` is part of the cache key and of a prepared folder's fingerprint: it holds a hash of all that decides the ids.
    Separators, and ids that stand for nothing, decode to nothing. `kind` and `content` are how a folder keeps it.
    """

    name: str
    vocab_size: int
    encode: Callable[[bytes | np.ndarray], np.ndarray]
    decode: Callable[[Sequence[int] | np.ndarray], bytes]
    separator: int = DEFAULT_SEPARATOR
    kind: str = "bytes"  # bytes | ids | json | ranks
    content: bytes = b""

    @property
    def dtype(self) -> np.dtype:
        """What a shard stores its ids in."""
        return id_type(self.vocab_size)

    @property
    def entry(self) -> dict[str, Any]:
        """What an index says of it, enough for `kept` to make it again."""
        facts = {"name": self.name, "kind": self.kind, "vocab_size": self.vocab_size, "separator": self.separator}
        return facts | ({"file": TOKENIZER_FILES[self.kind]} if self.kind in TOKENIZER_FILES else {})


def id_type(vocab_size: int) -> np.dtype:
    """The smallest little-endian unsigned type that holds every id."""
    return np.dtype("u1" if vocab_size <= 2**8 else "<u2" if vocab_size <= 2**16 else "<u4")


def byte_tokenizer() -> Tokenizer:
    """A token a byte, 256 in all. A zero byte inside a document can't be told from a separator; text has none."""
    return Tokenizer(
        "bytes",
        256,
        lambda document: np.frombuffer(bytes(document), np.uint8),
        lambda ids: bytes(np.asarray(ids, np.uint8)).replace(b"\0", b""),
    )


def id_tokenizer(vocab_size: int, separator: int = DEFAULT_SEPARATOR) -> Tokenizer:
    """For sources that yield ids already: checked against `vocab_size`, otherwise unchanged. Nothing can be decoded."""

    def encode(document: bytes | np.ndarray) -> np.ndarray:
        ids = np.asarray(document)
        check_ids(ids, vocab_size)
        return ids

    def decode(ids: Sequence[int] | np.ndarray) -> bytes:
        raise BadInput("these data are token ids without a tokenizer: there is no text to turn them into")

    name = f"ids-{vocab_size}" + (f"-{separator}" if separator != DEFAULT_SEPARATOR else "")
    return Tokenizer(name, vocab_size, encode, decode, separator, "ids")


def check_ids(ids: np.ndarray, vocab_size: int, place: Callable[[int], str] = lambda _: "") -> None:
    """BadInput for the first id outside the vocabulary; `place(i)` says where the i-th stands."""
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        first = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
        raise BadInput(
            f"{place(first)}token id {ids[first]} is outside the vocabulary of {vocab_size} (ids 0 to {vocab_size - 1})"
        )


def decoder_from_table(table: Sequence[bytes], separator: int) -> Callable[[Sequence[int] | np.ndarray], bytes]:
    """A `decode` from the bytes of every id."""
    texts = list(table)
    texts[separator] = b""
    return lambda ids: b"".join([texts[i] for i in np.asarray(ids).tolist()])


def hashed_tokenizer_name(kind: str, content: bytes, vocab_size: int, separator: int) -> str:
    """The kind and 16 digits of a hash of all that decides the ids."""
    facts = json.dumps([kind, hashlib.sha256(content).hexdigest(), vocab_size, separator])
    return f"{kind}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"
