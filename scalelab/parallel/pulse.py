"""A process's step and phase, sent to its peers, and watched for standing still.

A main thread can hang in a collective that nobody joins, a device, a disk or the user's code. Another thread then
writes the stacks of all threads into the run's folder and ends the process.
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

from scalelab.record import lock
from scalelab.untrusted.files import open_to_append

STEPPING = "train"  # the one phase with a time limit; compile, eval, save and start (restoring) have none
STALL_DISPATCHES = 10  # time limit of a step, in median dispatches
LAST_WRITE_S = 10.0  # time limit of the last writes, since the disk itself may hang


def exit_with(why: str) -> None:
    """End this process with one line on standard error and exit code 1; an interactive session only gets the line."""
    shown_cursor = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar has hidden the cursor
    os.write(2, f"{shown_cursor}scalelab: {why}\n".encode())
    if not hasattr(sys, "ps1"):
        run_with_timeout(LAST_WRITE_S, lock.release_all_locks)
        os._exit(1)


def run_with_timeout(seconds: float, work: Callable[[], object]) -> None:
    """Do `work` in a thread and wait at most so many seconds for it."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)


class Pulse:
    """Phase and step of this process; the step is the one it runs or waits for (so its peers may be behind).

    `stalled(why)` is called, in the watching thread, after too long without progress.
    """

    def __init__(self, stalled: Callable[[str], None] = exit_with) -> None:
        self.stalled = stalled
        self.step, self.phase, self.steps_at_once = 0, "start", 1
        self.moves = 0  # number of changes of phase or step
        self.dispatches: collections.deque[float] = collections.deque(maxlen=100)  # seconds of the last ones
        self.excused: Callable[[], bool] = lambda: False  # whether a peer is busy with what this process waits for
        self.hindmost: Callable[[], str] = lambda: ""
        self.stacks: pathlib.Path | None = None
        self.seconds: dict[str, float] = {}  # of the main thread, by what it did or waited for

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to those of `name`."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def enter(self, phase: str, step: int) -> None:
        """Note the phase and step that begin now."""
        self.phase, self.step = phase, step
        self.moves += 1

    def limit(self, stall_s: float) -> float:
        """Seconds allowed without a step; until a dispatch has been timed, `stall_s` for each of its steps."""
        if not self.dispatches:
            return stall_s * self.steps_at_once
        return max(stall_s, STALL_DISPATCHES * statistics.median(self.dispatches))

    @contextlib.contextmanager
    def watched(self, stall_s: float, folder: pathlib.Path, note: Callable[[str], object]) -> Iterator[None]:
        """Watch this thread until the block ends (not if `stall_s` is 0). `note(why)` writes into the logbook."""
        suffix = f"-{jax.process_index()}" if jax.process_count() > 1 else ""
        self.stacks = folder / f"stacks{suffix}.txt"
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
            # Time in which this process itself was stopped, or got no share of the machine, does not count.
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
            with os.fdopen(open_to_append(self.stacks), "a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}, at step {self.step}, in phase {self.phase}:\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
                file.write("\n")
