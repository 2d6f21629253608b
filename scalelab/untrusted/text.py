"""Make others' text safe for a terminal or a page: no escapes, control characters, or marks that turn its direction."""

from typing import Any, TextIO

MOST_CHARACTERS = 300


def printable(text: str, most: int = MOST_CHARACTERS) -> str:
    """`text` with everything that is not printable written as an escape (`\\x1b`), cut after `most` characters.

    This covers names of files that are not UTF-8: Python's surrogates are not printable.
    """
    return escape_text(text if len(text) <= most else f"{text[: most - 3]}...")


def escape_text(text: str, passing: str = "") -> str:
    """`text` in full with everything that is neither printable nor in `passing` written as an escape."""
    others = text
    for letter in passing:
        others = others.replace(letter, "")
    if others.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in passing else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def as_utf8(text: str) -> str:
    """`text` with what UTF-8 can't hold (bytes of a file's name, half a letter) written as an escape (`\\udcff`)."""
    return text.encode("utf-8", "backslashreplace").decode()


class PlainStream:
    """A standard stream whose text is escaped as it is written, but for ends of lines, tabs and `leading` characters.

    rich, which draws with its own escapes, writes to `rich_proxied_file`, the stream itself.
    """

    def __init__(self, stream: TextIO, leading: str = "") -> None:
        self.rich_proxied_file, self._leading = stream, leading

    def write(self, text: str) -> int:
        """Write a text; returns its length, as every stream does."""
        rest = text.lstrip(self._leading) if self._leading else text
        self.rich_proxied_file.write(text[: len(text) - len(rest)] + escape_text(rest, "\n\t"))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write texts one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)
