"""What every reader is told, and what it does with a document that can't be right."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from scalelab.errors import BadInput

MAX_NAMED_DOCUMENTS = 5  # bad documents of a unit that are named; the others are counted


class Piece(NamedTuple):
    """A range of one file, in what its kind counts: bytes, row groups, records, tokens, documents. 0 to -1: all of it."""

    kind: str
    path: str
    start: int = 0
    stop: int = -1


@dataclasses.dataclass
class Reading:
    """How documents are read. `bad` is where all that is wrong with a single document ends."""

    text_key: str = "text"  # of JSON lines, parquet columns and tfds features
    skip_bad: bool = False
    vocab_size: int = 256  # ready-made ids must be below
    separator: int = 0  # ends a document among ready-made ids
    zero_ends: bool = True  # bytes as tokens: a zero byte in a text would end its document
    n_bad: int = 0
    named: list[str] = dataclasses.field(default_factory=list)

    def bad(self, where: str, why: str) -> None:
        """Raise BadInput, or with `skip_bad` count it. `where` names the file and the place in it."""
        if not self.skip_bad:
            raise BadInput(f"{where}: {why} (--skip-bad leaves such documents out and counts them)")
        self.n_bad += 1
        if len(self.named) < MAX_NAMED_DOCUMENTS:
            self.named.append(f"{where}: {why}")

    def is_text(self, document: bytes, where: Callable[[], str], offset: int = 0) -> bool:
        """Whether it is UTF-8 that the tokenizer can take; what isn't goes to `bad`, with its byte. `offset` is the document's.

        `where()` is asked for only then: a line's number takes counting.
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
