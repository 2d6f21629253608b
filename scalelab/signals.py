"""Stop signals as a flag, so that a program can finish or save its work before it ends.

SIGTERM and SIGINT, and the earlier warnings of batch systems: SIGUSR1 and SIGUSR2 (Slurm's --signal, SGE's -notify,
LSF), SIGXCPU (a limit on CPU time) and SIGHUP (the terminal has gone).
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGXCPU)
URGENT_SIGNALS = (signal.SIGTERM, signal.SIGINT)  # the others are warnings, repeated by kernels, shells and schedulers


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Turn the first of STOP_SIGNALS into a flag; a second SIGTERM or SIGINT acts as without a handler.

    A SIGHUP that was ignored before (nohup) stays ignored. Signals that came while blocked are noticed at once.
    """
    seen: list[int] = []
    terminals = [descriptor for descriptor in (0, 1, 2) if os.isatty(descriptor)]

    def notice(number: int, _: Any) -> None:
        seen.append(number)
        if number in URGENT_SIGNALS:
            signal.signal(number, old[number])
        for descriptor in terminals:
            if not os.isatty(descriptor):
                _redirect_to_null(descriptor)

    numbers = [n for n in STOP_SIGNALS if (n, signal.getsignal(n)) != (signal.SIGHUP, signal.SIG_IGN)]
    old: dict[int, Any] = {number: signal.signal(number, notice) for number in numbers}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def block_stop_signals() -> Iterator[None]:
    """Block STOP_SIGNALS: processes started meanwhile don't receive them until they enter `stop_on_signals`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _redirect_to_null(descriptor: int) -> None:
    """Redirect a descriptor to /dev/null: writing to a closed terminal is an error, and would prevent a save."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
