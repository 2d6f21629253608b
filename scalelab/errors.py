"""The two exceptions that users see as one line: bad input (exit 2) and failed work (exit 1)."""

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """Bad input: the message is one line that names the value, why it is refused, and the nearest good one."""


class WorkFailed(RuntimeError):
    """Failed work on good input (a damaged checkpoint, a full disk): the message says what failed and what to do."""


def nearest_hint(word: str, known: Iterable[str]) -> str:
    """The tail of a message about an unknown word: `; did you mean 'x'?`, or all known words if few; else ""."""
    known = [str(k) for k in known]
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(sorted(known))}" if known and len(known) <= 24 else ""
