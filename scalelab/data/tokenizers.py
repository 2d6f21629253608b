"""Bytes -> tokens. A tokenizer is a name, a vocabulary size and one function; token 0 ends every document.

Bits per byte of a loss in nats per token: loss / ln 2 / bytes_per_token, where bytes_per_token counts the bytes of the
documents over the tokens of the stream, separators included: the cost of ending a document is part of encoding it.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from scalelab.errors import BadInput

SEPARATOR = 0


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """`encode` maps one document to a 1-D array of ids below `vocab_size`, without the separator.

    `name` is part of the cache key, so two tokenizers that encode differently must not share one.
    """

    name: str
    vocab_size: int
    encode: Callable[[bytes | np.ndarray], np.ndarray]

    @property
    def dtype(self) -> np.dtype:
        """The smallest little-endian unsigned type that holds every id: what a shard stores."""
        return np.dtype("u1" if self.vocab_size <= 2**8 else "<u2" if self.vocab_size <= 2**16 else "<u4")


def byte_tokens() -> Tokenizer:
    """A token a byte, 256 in all. A zero byte inside a document can't be told from a separator; text has none."""
    return Tokenizer("bytes", 256, lambda document: np.frombuffer(bytes(document), np.uint8))


def given_tokens(vocab_size: int) -> Tokenizer:
    """For sources that yield ids already: checked against `vocab_size`, otherwise unchanged."""

    def encode(document: bytes | np.ndarray) -> np.ndarray:
        ids = np.asarray(document)
        if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
            wrong = ids.max() if ids.max() >= vocab_size else ids.min()
            raise BadInput(f"token id {wrong} is outside the vocabulary of {vocab_size} (ids 0 to {vocab_size - 1})")
        return ids

    return Tokenizer(f"ids-{vocab_size}", vocab_size, encode)
