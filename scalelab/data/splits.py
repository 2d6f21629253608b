"""Split documents into training and validation text, whatever their number and sizes; say what share was got.

Many small documents are split whole. Where whole documents miss the share by a factor of more than FAR (a single file,
five books), they are first cut at line ends into pieces of a small part of the share.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from scalelab.errors import BadInput

FAR = 1.5  # factor between share asked and share got from which documents are cut
REFUSED = 2.0  # factor from which a split is refused
PIECES = (16, 64, 256)  # pieces that hold the smaller split, at the first, second and third attempt
SHORTEST = 16  # least bytes of a piece: fewer are not a text


class Share(NamedTuple):
    """How much of the text a split holds out: bytes and documents, `asked` as a share of the bytes."""

    val_bytes: int
    all_bytes: int
    val_documents: int
    all_documents: int
    asked: float

    @property
    def got(self) -> float:
        """The share of the bytes that is held out."""
        return self.val_bytes / max(self.all_bytes, 1)

    def is_off(self, factor: float) -> bool:
        """Whether the smaller split is more than `factor` away from what was asked; always if a split is empty."""
        if not 0 < self.val_documents < self.all_documents:
            return True
        got, asked = (self.got, self.asked) if self.asked <= 0.5 else (1 - self.got, 1 - self.asked)
        return not asked / factor <= got <= asked * factor


def check_share(share: Share, what: str, mend: str) -> None:
    """Raise BadInput for a split that is a factor REFUSED off. `what` names the documents, `mend` what helps."""
    if share.is_off(REFUSED):
        side = "val" if not share.val_documents else "training"
        fact = f"of the bytes {share.got:.1%} would be held out where {share.asked:.3g} was asked"
        if not 0 < share.val_documents < share.all_documents:
            fact = f"none of the {share.all_documents} documents falls to the {side} split at a share of {share.asked}"
        raise BadInput(f"{what}: {fact}: {mend}")


def piece_bytes(all_bytes: int, asked: float, attempt: int) -> int:
    """Size of the pieces for an attempt from 0 on."""
    return max(SHORTEST, int(all_bytes * min(asked, 1 - asked) / PIECES[attempt]))


def cut_document(document: bytes | np.ndarray, size: int, n_bytes: int | None = None) -> list[bytes | np.ndarray]:
    """Cut a document that is longer than 1.5 `size` bytes into pieces of about `size`; they join to the document.

    Text is cut after the first line end, else the first space, else letter, behind each multiple of `size`; ids (of
    `n_bytes` of text) anywhere. size 0: no cut.
    """
    length = len(document)
    step = size if isinstance(document, bytes) or not n_bytes else max(1, size * length // n_bytes)
    if not size or length <= 1.5 * step:
        return [document]
    return list(_pieces(document, step))


def _pieces(document: bytes | np.ndarray, step: int) -> Iterator[bytes | np.ndarray]:
    start = 0
    while len(document) - start > 1.5 * step:
        at = start + step
        stop = min(at + max(step // 2, 4), len(document))  # 4 bytes hold the beginning of a letter
        end = at if isinstance(document, np.ndarray) else at + _place_of_cut(document[at:stop])
        yield document[start:end]
        start = end
    if start < len(document):
        yield document[start:]


def _place_of_cut(window: bytes) -> int:
    """Bytes of the window that still belong to the piece."""
    for mark in (b"\n", b" "):
        if (place := window.find(mark)) >= 0:
            return place + 1
    return next((i for i, byte in enumerate(window) if byte & 0xC0 != 0x80), len(window))


def content_hash(content: bytes, split_seed: int) -> int:
    """64 bits of a hash of (seed, content), which decide a document's side: validation if they are below the share.

    Copies fall on the same side; names, order and other documents don't matter.
    """
    digest = hashlib.sha256(f"{split_seed}:".encode() + hashlib.sha256(content).digest()).digest()
    return int.from_bytes(digest[:8], "big")


def choose_pieces(hashes: list[int], document: int, val_fraction: float) -> list[bool]:
    """Which pieces of a document are held out, by their `content_hash` and the document's.

    It is the share of their number, rounded by the document's hash; the pieces of least hash are taken. A document of a
    single piece is held out if its hash falls into the share.
    """
    wanted = val_fraction * len(hashes)
    spare = document < (wanted % 1) * 2.0**64
    ranked = sorted(range(len(hashes)), key=lambda i: (hashes[i], i))
    chosen = set(ranked[: int(wanted) + spare])
    return [i in chosen for i in range(len(hashes))]


def share_facts(share: Share, cut_bytes: int = 0) -> dict[str, Any]:
    """A split's facts for an index, a record or a command's JSON."""
    facts = {"asked": share.asked, "bytes": share.got, "documents": share.val_documents / max(share.all_documents, 1)}
    return facts | ({"cut_bytes": cut_bytes} if cut_bytes else {})
