"""Tokenizers: a name, a vocabulary size, two functions (bytes to ids and back), and the id that ends a document.

Bits per byte of a loss in nats per token: loss / ln 2 / bytes_per_token. bytes_per_token is the bytes of the documents
over the tokens of the stream, separators included: ending a document is part of encoding it.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scalelab.errors import BadInput

TOKENIZER_FILES = {"json": "tokenizer.json", "ranks": "tokenizer.tiktoken"}  # file in a prepared folder, by kind
DEFAULT_SEPARATOR = 0  # separator of bytes, synthetic text, and tokenizers trained here


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A tokenizer.

    `encode` maps one document to a 1-D array of ids below `vocab_size`, without the separator; `decode` maps any ids to
    bytes, and separators and unused ids to nothing. `encode` raises ValueError where its library fails: tiktoken on
    half a million spaces in a row, a tokenizer.json without an unknown token on a letter that it lacks, also where the
    library would drop the letter in silence (BPE).

    `unknown` is the id of what the vocabulary lacks (None: nothing is lacking, or encoding raises); `count_unknown`
    counts the bytes of a document that have no token of their own.

    `name` is part of the cache key and of a prepared folder's fingerprint: it holds a hash of all that decides the ids.
    `kind` and `content` are what a folder stores.
    """

    name: str
    vocab_size: int
    encode: Callable[[bytes | np.ndarray], np.ndarray]
    decode: Callable[[Sequence[int] | np.ndarray], bytes]
    separator: int = DEFAULT_SEPARATOR
    kind: str = "bytes"  # bytes | ids | json | ranks
    content: bytes = b""
    unknown: int | None = None
    count_unknown: Callable[[bytes], int] | None = None

    @property
    def dtype(self) -> np.dtype:
        """The type of ids in a shard."""
        return id_type(self.vocab_size)

    @property
    def entry(self) -> dict[str, Any]:
        """The tokenizer's entry in an index, from which `load.load_indexed_tokenizer` loads it."""
        facts = {"name": self.name, "kind": self.kind, "vocab_size": self.vocab_size, "separator": self.separator}
        return facts | ({"file": TOKENIZER_FILES[self.kind]} if self.kind in TOKENIZER_FILES else {})


def id_type(vocab_size: int) -> np.dtype:
    """The smallest little-endian unsigned type that holds every id."""
    return np.dtype("u1" if vocab_size <= 2**8 else "<u2" if vocab_size <= 2**16 else "<u4")


def byte_tokenizer() -> Tokenizer:
    """The tokenizer with one token a byte, 256 in all. A zero byte in a document acts as a separator; text has none."""
    return Tokenizer(
        "bytes",
        256,
        lambda document: np.frombuffer(bytes(document), np.uint8),
        lambda ids: bytes(np.asarray(ids, np.uint8)).replace(b"\0", b""),
    )


def id_tokenizer(vocab_size: int, separator: int = DEFAULT_SEPARATOR) -> Tokenizer:
    """Make a tokenizer for sources of ids: it checks them against `vocab_size`, and can't decode."""

    def encode(document: bytes | np.ndarray) -> np.ndarray:
        ids = np.asarray(document)
        check_ids(ids, vocab_size)
        return ids

    def decode(ids: Sequence[int] | np.ndarray) -> bytes:
        raise BadInput("these data are token ids without a tokenizer: they can't be decoded to text")

    name = f"ids-{vocab_size}" + (f"-{separator}" if separator != DEFAULT_SEPARATOR else "")
    return Tokenizer(name, vocab_size, encode, decode, separator, "ids")


def check_ids(ids: np.ndarray, vocab_size: int, place: Callable[[int], str] = lambda _: "") -> None:
    """Raise BadInput for the first id outside the vocabulary; `place(i)` names the place of the i-th."""
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        first = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
        raise BadInput(
            f"{place(first)}token id {ids[first]} is outside the vocabulary of {vocab_size} (ids 0 to {vocab_size - 1})"
        )


def decoder_from_table(table: Sequence[bytes], separator: int) -> Callable[[Sequence[int] | np.ndarray], bytes]:
    """Make a `decode` function from the bytes of every id."""
    texts = list(table)
    texts[separator] = b""
    return lambda ids: b"".join([texts[i] for i in np.asarray(ids).tolist()])


def hashed_tokenizer_name(kind: str, content: bytes, vocab_size: int, separator: int) -> str:
    """Name a tokenizer by its kind and 16 hexadecimal digits of a hash over all that decides the ids."""
    facts = json.dumps([kind, hashlib.sha256(content).hexdigest(), vocab_size, separator])
    return f"{kind}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"
