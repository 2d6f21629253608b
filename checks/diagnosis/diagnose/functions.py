"""Functions that faulty configs name: blocks, losses, schedules, sources, and an optimizer."""

import hashlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.optim.adam import scale_by_adam
from scalelab.optim.optimizer import Optimizer, bytes_per_scalar

N_DOCUMENTS, WORDS = 600, 120  # of a corpus: some 400,000 bytes
FAULTY = slice(200, 300)  # the documents that a fault replaces: "a shard"


def no_norm(x_BSD: jax.Array, parts: Any) -> jax.Array:
    """A block without its norms."""
    x_BSD = x_BSD + parts.attention(x_BSD)
    return x_BSD + parts.mlp(x_BSD)


def pushes_log_z(arrays: Any) -> jax.Array:
    """A term of the loss that rewards large output logits."""
    return -0.2 * jnp.mean(jax.nn.logsumexp(arrays.logits(), axis=-1))


def overflows(arrays: Any) -> jax.Array:
    """A term whose gradient is not finite."""
    return 0.0 * jnp.sum(arrays.hidden.astype(jnp.float32)) / 0.0


def restarts(step: jax.Array, h: Any) -> jax.Array:
    """A cosine that begins anew in the middle of the run."""
    half = h.train.steps / 2
    return h.optim.peak_lr * (0.05 + 0.95 * 0.5 * (1 + jnp.cos(jnp.pi * (step % half) / half)))


def _uncorrected(declared: Any, o: Any, h: Any, lr: jax.Array) -> Any:
    return scale_by_adam(h.optim.beta1, 0.999, h.optim.eps, corrected=False)


UNCORRECTED_ADAM = Optimizer(_uncorrected, bytes_per_scalar(8))


def corpus(kind: str) -> Iterator[bytes]:
    """Documents of a small language, some of them faulty by `kind`."""
    documents = [_document(i) for i in range(N_DOCUMENTS)]
    fault = FAULTS[kind]
    return iter(fault(documents))


def _document(number: int, words: int = WORDS) -> bytes:
    """A document of Markov words: the next word is one of eight that follow the last."""
    rng = np.random.default_rng([7, number])
    word, text = int(rng.integers(400)), []
    for choice in rng.integers(8, size=words):
        text.append(_word(word))
        word = int.from_bytes(hashlib.blake2b(f"{word}:{choice}".encode(), digest_size=2).digest(), "big") % 400
    return " ".join(text).encode()


def _word(number: int) -> str:
    rng = np.random.default_rng([3, number])
    return "".join(chr(97 + int(letter)) for letter in rng.integers(26, size=2 + number % 6))


def _replaced(documents: list[bytes], replace: Any) -> list[bytes]:
    return (
        documents[: FAULTY.start] + [replace(i, d) for i, d in enumerate(documents[FAULTY])] + documents[FAULTY.stop :]
    )


def _noise(number: int, document: bytes) -> bytes:
    return np.random.default_rng([5, number]).integers(1, 256, len(document), np.uint8).tobytes()


def _shuffled(number: int, document: bytes) -> bytes:
    return np.random.default_rng([9, number]).permutation(np.frombuffer(document, np.uint8)).tobytes()


def _phrase(number: int, document: bytes) -> bytes:
    return (f"buy now {number:03d}! " * len(document)).encode()[: len(document)]


FAULTS = {
    "healthy": lambda documents: documents,
    "zeros": lambda documents: _replaced(documents, lambda i, d: bytes([32]) * (len(d) + i)),
    "noise": lambda documents: _replaced(documents, _noise),
    "shuffled": lambda documents: _replaced(documents, _shuffled),
    "phrase": lambda documents: _replaced(documents, _phrase),
    "shard_twice": lambda documents: [*documents[: FAULTY.stop], *documents[FAULTY], *documents[FAULTY.stop :]],
    "duplicates": lambda documents: (
        documents + [documents[int(i)] for i in np.random.default_rng(1).integers(600, size=200)]
    ),
}
