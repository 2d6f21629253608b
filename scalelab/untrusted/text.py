"""Text of others for a terminal or a page: no escapes, no control characters, no marks that turn its direction."""

MOST_CHARACTERS = 300


def printable(text: str, most: int = MOST_CHARACTERS) -> str:
    """`text` with everything that is not printable written as an escape (`\\x1b`), cut after `most` characters.

    Also for names of files that are not UTF-8: Python's surrogates are not printable.
    """
    cut = text if len(text) <= most else f"{text[: most - 3]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in cut)
