"""A worker of the pool: a process that trains one pack after the other and records the time of each."""

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Callable, Collection, Mapping
from multiprocessing import connection
from typing import Any

from ml_collections import ConfigDict

from scalelab import user_code
from scalelab.errors import BadInput
from scalelab.record import records
from scalelab.signals import stop_on_signals
from scalelab.untrusted.files import open_to_append

POLL_S = 0.2
STOPPED_EXIT_CODE = 75
REFUSED_EXIT_CODE = 2  # BadInput, which is the log's last line
SPENT_FILE = "spent.jsonl"
COMPILE_EVENTS = "/jax/core/compile/"  # prefix of jax's duration events of tracing, lowering and compiling


def run_worker(
    folder: pathlib.Path,
    pipe: connection.Connection,
    cores: list[int],
    environment: Mapping[str, str],
    allow: Collection[str],
    take_over: bool,
    judge: Callable[[pathlib.Path], str] | None = None,
) -> None:
    """Train the packs that arrive through the pipe until it closes; send True after each.

    A pack arrives as (name, {trial: config}, `user_code.export_permissions()`, `git.code_state()`). Anything else that
    arrives while it trains, a closed pipe included, means stop, as a signal does: the pack is saved and the exit code
    is 75. An exception ends the worker, and with it all that the pack changed in this process: with code 2 if it is
    BadInput. Output goes to the pack's log.
    """
    os.environ.update(environment)  # the accelerator that jax will find
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)  # before jax starts its threads, one per allowed core
    from scalelab.sweep.pack import train_pack
    from scalelab.train.step.program import cache_compilations

    cache_compilations()
    clock = PackClock()
    with stop_on_signals() as signalled:
        while job := _next(pipe, signalled):
            pack, configs, permissions, code = job
            user_code.apply_permissions(permissions)
            place = folder / "packs" / pack
            log_to(place)
            clock.start()
            trials = {name: ConfigDict(config) for name, config in configs.items()}
            try:
                verdicts = train_pack(
                    folder,
                    pack,
                    trials,
                    log_warning,
                    stop=lambda: signalled() or pipe.poll(),
                    allow=allow,
                    take_over=take_over,
                    code=code,
                    judge=judge,
                )
            except BadInput as refusal:
                log_warning({"warning": refusal})
                sys.exit(REFUSED_EXIT_CODE)
            records.append_json_lines(place / SPENT_FILE, [clock.read()])
            if "stopped" in verdicts.values():
                sys.exit(STOPPED_EXIT_CODE)
            with contextlib.suppress(OSError):  # the parent has closed the pipe: `_next` will end the loop
                pipe.send(True)


def _next(pipe: connection.Connection, signalled: Callable[[], bool]) -> Any:
    """The next job; None: time to end."""
    while not pipe.poll(POLL_S):
        if signalled():
            return None
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return None


def log_to(place: pathlib.Path) -> None:
    """Send this process's output to the pack's log."""
    sys.stdout.flush()
    sys.stderr.flush()
    place.mkdir(parents=True, exist_ok=True)
    log = open_to_append(place / "log.txt")
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def log_warning(facts: Mapping[str, Any]) -> None:
    """Print a warning of the loop, or who holds the pack; a worker's output is the pack's log."""
    if "warning" in facts:
        sys.stderr.write(f"{facts['warning']}\n")
        sys.stderr.flush()


class PackClock:
    """Seconds that this process spends on one pack: `wall_s`, `cpu_s`, `compile_s`.

    `compile_s` is the wall time of tracing, lowering and compiling. The first pack's `cpu_s` includes the start of the
    process, which is also its `start_s`.
    """

    def __init__(self) -> None:
        from jax import monitoring

        self.before, self.compile_s = 0.0, 0.0
        monitoring.register_event_duration_secs_listener(self._add_compile_time)

    def _add_compile_time(self, event: str, duration_secs: float, **_: Any) -> None:
        if event.startswith(COMPILE_EVENTS):
            self.compile_s += duration_secs

    def start(self) -> None:
        """Start the clock for the next pack."""
        self.start_s = 0.0 if self.before else time.process_time()
        self.compile_s, self.wall = 0.0, time.monotonic()

    def read(self) -> dict[str, float]:
        """The seconds spent on the pack, and the time of its end."""
        now = time.process_time()
        cpu_s, self.before = now - self.before, now
        wall_s = time.monotonic() - self.wall
        return {
            "time": time.time(),
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            "compile_s": self.compile_s,
            "start_s": self.start_s,
        }
