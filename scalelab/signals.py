"""SIGTERM and SIGINT as a flag: what has begun is finished or put away first."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Turn the first SIGTERM or SIGINT into a flag; the second acts as if nobody listened."""
    seen: list[int] = []

    def notice(number: int, _: Any) -> None:
        seen.append(number)
        signal.signal(number, old[number])

    old: dict[int, Any] = {number: signal.signal(number, notice) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
