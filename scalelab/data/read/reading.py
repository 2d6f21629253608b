"""The options of every reader, its choice of records, and its treatment of bad documents."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from scalelab.data.read.selection import EVERYTHING, Selection, find_field
from scalelab.errors import BadInput, nearest_hint

TOOLS = ("tools", "functions")  # beside the messages of a chat
NO_TOOLS = "templates see no tools here; nearest: write them into a system message, and take the key out"
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
    selection: Selection = EVERYTHING
    is_chat: bool = False  # whether lists of messages are documents, too
    render_chat: Callable[[Any], np.ndarray | bytes] | None = None  # messages -> ids, masked ones negative; ValueError
    n_bad: int = 0
    n_filtered: int = 0  # documents that the source's filters or sample left out
    named: list[str] = dataclasses.field(default_factory=list)

    @property
    def key(self) -> str:
        """The key of the text: the source's own, else --text-key."""
        return self.selection.key or self.text_key

    @property
    def key_origin(self) -> str:
        """Where the key was given, for error lines."""
        return "#KEY of the source" if self.selection.key else "--text-key"

    def bad(self, where: str, why: str) -> None:
        """Raise BadInput, or with `skip_bad` count the document. `where` names the file and the place in it."""
        if not self.skip_bad:
            raise BadInput(f"{where}: {why} (--skip-bad leaves such documents out and counts them)")
        self.n_bad += 1
        if len(self.named) < MAX_NAMED_DOCUMENTS:
            self.named.append(f"{where}: {why}")

    def is_chosen(self, record: Any, where: Callable[[], str]) -> bool:
        """Whether a record passes the source's filters; one without a filter's field, or not comparable, is bad."""
        for one in self.selection.filters:
            try:
                passes = one.holds(find_field(record, one.key))
            except KeyError:
                hint = nearest_hint(one.key, list(record)) if isinstance(record, dict) else ""
                self.bad(where(), f"no field {one.key!r}, by which the source is filtered ({one}){hint}")
                return False
            except ValueError as error:
                self.bad(where(), f"{one.key!r} can't be compared ({one}): {error}")
                return False
            if not passes:
                self.n_filtered += 1
                return False
        return True

    def check_no_fields(self, where: str) -> None:
        """Raise BadInput if the source has a key of its own or filters, and the file has no fields."""
        text = self.selection._replace(sample=1.0).describe()
        if text:
            raise BadInput(f"{where} has no fields, so {text} says nothing about it; sample=SHARE works on any file")

    def chat_or_fault(self, value: Any) -> np.ndarray | bytes | str:
        """The ids of a list of messages, or the fault: --chat is not given, or the template refuses them."""
        is_chat = isinstance(value, list) and value and all(isinstance(each, dict) and "role" in each for each in value)
        if isinstance(value, list) and value and all(isinstance(each, dict) and "from" in each for each in value):
            return f"{self.key!r} is a list of from and value (ShareGPT): write it as messages of role and content"
        if not is_chat:
            return f"{self.key!r} is {type(value).__name__}, not a text"
        if self.render_chat is None:
            return f"{self.key!r} is a list of messages, not a text: --chat renders it by the tokenizer's template"
        try:
            return self.render_chat(value)
        except ValueError as error:
            return str(error)

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
