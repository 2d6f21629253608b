"""The options of every reader, and its treatment of bad documents."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from scalelab.errors import BadInput

MAX_NAMED_DOCUMENTS = 5  # most bad documents of a unit that are named; the others are only counted


class Piece(NamedTuple):
    """A range of one file, in its kind's units: bytes, row groups, records, tokens, documents. 0 to -1: all of it."""

    kind: str
    path: str
    start: int = 0
    stop: int = -1


@dataclasses.dataclass
class Reading:
    """Options of reading; every reader reports a bad document through `bad`."""

    text_key: str = "text"  # key of JSON lines, parquet column or tfds feature
    skip_bad: bool = False
    vocab_size: int = 256  # ready-made ids must be smaller
    separator: int = 0  # id that ends a document among ready-made ids
    zero_ends: bool = True  # true for bytes as tokens, where a zero byte would end its document
    n_bad: int = 0
    named: list[str] = dataclasses.field(default_factory=list)

    def bad(self, where: str, why: str) -> None:
        """Raise BadInput, or with `skip_bad` count the document. `where` names the file and the place in it."""
        if not self.skip_bad:
            raise BadInput(f"{where}: {why} (--skip-bad leaves such documents out and counts them)")
        self.n_bad += 1
        if len(self.named) < MAX_NAMED_DOCUMENTS:
            self.named.append(f"{where}: {why}")

    def is_text(self, document: bytes, where: Callable[[], str], offset: int = 0) -> bool:
        """Whether a document is UTF-8 for the tokenizer; else it goes to `bad` with its byte, counted from `offset`.

        `where()` is called only for bad ones: a line's number has to be counted.
        """
        try:
            document.decode()
        except UnicodeDecodeError as error:
            at, value = offset + error.start, document[error.start]
            self.bad(f"{where()}, byte {at}", f"0x{value:02x} is not valid UTF-8 there")
            return False
        if self.zero_ends and (at := document.find(0)) >= 0:
            self.bad(f"{where()}, byte {offset + at}", "a zero byte, which ends documents under --tokenizer=bytes")
            return False
        return True
