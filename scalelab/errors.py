"""The two exceptions that reach a user as one line: the input cannot be right (exit 2), or the work failed (exit 1)."""

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """Bad input: the message is one line that names the value, why it is refused, and the nearest good one."""


class WorkFailed(RuntimeError):
    """The input was right and the work could not be done (a damaged checkpoint, a full disk): what, and what to do."""


def nearest_hint(word: str, known: Iterable[str]) -> str:
    """The known word closest to `word`, as the tail of a message: `; did you mean 'x'?`, or the whole choice."""
    known = [str(k) for k in known]
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(sorted(known))}" if known and len(known) <= 24 else ""
