"""The one exception that means: the user's input cannot be right. The command line turns it into one line and exit 2."""

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """Bad input: the message is one line that names the value, why it is refused, and the nearest good one."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word closest to `word`, as the tail of a message: `; did you mean 'x'?`, or the whole choice."""
    known = [str(k) for k in known]
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(sorted(known))}" if known and len(known) <= 24 else ""
