"""A line on a terminal while `scalelab plan` searches: the layouts it has accounted for, and the seconds so far."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from scalelab.plan.search.by_time import count_accounted

AFTER_S, EVERY_S = 1.0, 0.5  # the line comes after, and is written anew
CLEAR = "\r\x1b[K"


@contextlib.contextmanager
def show_search(after_s: float = AFTER_S) -> Iterator[None]:
    """The line on standard error, gone at the end; none where that is not a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    stream, start, ended = sys.stderr, time.monotonic(), threading.Event()

    def tell() -> None:
        wait = after_s
        while not ended.wait(wait):
            wait = EVERY_S
            line = f"planning: {count_accounted():,} layouts, {time.monotonic() - start:.0f} s"
            print(CLEAR + line, end="", file=stream, flush=True)
        if wait == EVERY_S:
            print(CLEAR, end="", file=stream, flush=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
