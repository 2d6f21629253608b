"""How far a process is and what it is doing: told to its peers, and watched for standing still.

A main thread that hangs (in a collective that nobody joins, a device, a disk, code of the user's) can't say so; a thread of its
own does: it writes the stacks of all threads into the run's folder and ends the process.
"""

import collections
import contextlib
import faulthandler
import functools
import os
import pathlib
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator

import jax

from scalelab import lock

STEPPING = (
    "train"  # the one phase that has to come to an end; compile, eval, save and start (restoring) take what they take
)
STALL_DISPATCHES = 10  # median dispatches without a step are too many
LAST_WRITE_S = 10.0  # for what is written at the end: the disk may be what hangs


def exit_with(why: str) -> None:
    """End this process with one line on standard error and exit code 1; an interactive session gets the line only."""
    shown_cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar has hidden it
    os.write(2, f"{shown_cursor}scalelab: {why}\n".encode())
    if not hasattr(sys, "ps1"):
        run_with_timeout(LAST_WRITE_S, lock.release_all_locks)
        os._exit(1)


def run_with_timeout(seconds: float, work: Callable[[], object]) -> None:
    """Do `work`, and wait for it for at most so long."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)


class Pulse:
    """The phase of this process and its step: the one it is at, or whose end it waits for (so its peers may be behind).

    `stalled(why)` is called, in the watching thread, once nothing has moved for too long.
    """

    def __init__(self, stalled: Callable[[str], None] = exit_with) -> None:
        self.stalled = stalled
        self.step, self.phase, self.steps_at_once = 0, "start", 1
        self.moves = 0  # how often one of them changed
        self.dispatches: collections.deque[float] = collections.deque(maxlen=100)  # seconds of the last ones
        self.excused: Callable[[], bool] = lambda: (
            False
        )  # whether a peer is known to be busy with what this one waits for
        self.hindmost: Callable[[], str] = lambda: ""
        self.stacks: pathlib.Path | None = None

    def enter(self, phase: str, step: int) -> None:
        """Note what begins now."""
        self.phase, self.step = phase, step
        self.moves += 1

    def limit(self, stall_s: float) -> float:
        """Seconds that may pass without a step. Before any dispatch has been timed, each of its steps gets `stall_s`."""
        return (
            max(stall_s, STALL_DISPATCHES * statistics.median(self.dispatches))
            if self.dispatches
            else stall_s * self.steps_at_once
        )

    @contextlib.contextmanager
    def watched(self, stall_s: float, folder: pathlib.Path, note: Callable[[str], object]) -> Iterator[None]:
        """Watch this thread until the block ends; `stall_s` = 0: don't. `note(why)` writes into the logbook."""
        mine = f"-{jax.process_index()}" if jax.process_count() > 1 else ""
        self.stacks = folder / f"stacks{mine}.txt"
        over = threading.Event()
        if stall_s:
            threading.Thread(target=self._watch, args=(stall_s, over, note), daemon=True, name="pulse").start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, stall_s: float, over: threading.Event, note: Callable[[str], object]) -> None:
        tick_s, moves, still_s = min(1.0, stall_s / 10), -1, 0.0
        while True:
            before = time.monotonic()
            if over.wait(tick_s):
                return
            if self.moves != moves or self.phase != STEPPING or self.excused():
                moves, still_s = self.moves, 0.0
                continue
            # A process that was itself stopped for an hour, or got no share of the machine, has not stood still for so long.
            still_s += min(time.monotonic() - before, 2 * tick_s)
            if still_s > (limit := self.limit(stall_s)):
                why = (
                    f"no new step for {still_s:.0f} s at step {self.step} (limit: {limit:.0f} s, train.stall_s or "
                    f"{STALL_DISPATCHES} dispatches){self.hindmost()}"
                )
                run_with_timeout(LAST_WRITE_S, self.dump)
                run_with_timeout(LAST_WRITE_S, functools.partial(note, why))
                self.stalled(f"{why}; the stacks of all threads are in {self.stacks}")
                return

    def dump(self) -> None:
        """Append the stacks of all threads to the file of this process."""
        if self.stacks:
            with open(self.stacks, "a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}, at step {self.step}, in phase {self.phase}:\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
                file.write("\n")
