"""A bounded pool on this machine: every pack in a fresh process, so that a crash takes nothing else down.

Processes come from a fork server that has imported jax but not started it: a fresh one costs a third of a second.
What they tell is files (run folders, `packs/KEY/log.txt`); the parent only starts them, watches, and passes on signals.
"""

import contextlib
import multiprocessing
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from typing import Any

from ml_collections import ConfigDict

from scalelab import records, signals
from scalelab.hardware import accelerated

POLL_S = 0.2
PRELOAD = ["scalelab.sweep.pack", "orbax.checkpoint", "grain"]
STOPPED = 75


def worker_count(wanted: int) -> int:
    """`sweep.workers`; 0: one a core on CPU, where tiny models don't fill two, and one in all on an accelerator."""
    return wanted or (1 if accelerated() else len(_cores()))


def run_packs(
    folder: pathlib.Path,
    jobs: Mapping[str, Mapping[str, ConfigDict]],
    workers: int,
    watch: Callable[[Sequence[str]], None] = lambda running: None,
    stop: Callable[[], bool] = lambda: False,
    allow: Collection[str] = (),
) -> dict[str, int]:
    """Train `{pack: {trial: config}}`, at most `workers` at once, in this order. Returns each pack's exit code.

    0 trained, 1 failed (its log says why; the others go on), 75 stopped. `watch` is called often, with the packs that run.
    """
    context = _context()
    waiting, codes = list(jobs), {}
    running: dict[str, tuple[Any, list[int]]] = {}
    shares, told = _shares(workers), False
    with _main_is_not_imported_again():
        while waiting or running:
            if stop() and not told:
                told = True
                waiting.clear()
                for process, _ in running.values():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGUSR1)  # SIGTERM may have come to all: a second one is urgent
            while waiting and len(running) < workers:
                pack = waiting.pop(0)
                share = shares.pop()
                configs = {name: config.to_dict() for name, config in jobs[pack].items()}
                process = context.Process(target=_work, args=(folder, pack, configs, share, allow), name=pack)
                process.start()
                running[pack] = (process, share)
            watch(list(running))
            time.sleep(POLL_S)
            for pack, (process, share) in list(running.items()):
                if not process.is_alive():
                    ended_by_signal = stop() and -process.exitcode in signals.STOPS
                    codes[pack] = STOPPED if ended_by_signal else process.exitcode
                    shares.append(share)
                    del running[pack]
    return codes


def _context() -> Any:
    """multiprocessing with a fork server (and a tracker of resources) that no signal to the process group ends.

    It would take the workers' exit codes with it. Workers inherit the deafness until they listen, so none dies as it starts.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with signals.blocked():
        resource_tracker.ensure_running()  # which unblocks SIGTERM and SIGINT when it has started
        with signals.blocked():
            forkserver.ensure_running()
    return context


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _shares(workers: int) -> list[list[int]]:
    """The cores of each worker; all of them where there are more workers than cores."""
    cores = _cores()
    return [cores[i::workers] for i in range(workers)] if workers <= len(cores) else [cores] * workers


@contextlib.contextmanager
def _main_is_not_imported_again():
    """Children get all they need as arguments; running the caller's script again in each would only cost time."""
    main = sys.modules["__main__"]
    kept = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    for attribute in kept:
        setattr(main, attribute, None)
    try:
        yield
    finally:
        for attribute, value in kept.items():
            setattr(main, attribute, value)


def _work(
    folder: pathlib.Path, pack: str, configs: Mapping[str, dict[str, Any]], cores: list[int], allow: Collection[str]
) -> None:
    """A worker's life. Its output goes to the pack's log."""
    place = folder / "packs" / pack
    place.mkdir(parents=True, exist_ok=True)
    log = os.open(place / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)  # before jax starts its threads: it makes one a core that it may use
    from scalelab.signals import stop_on_signals
    from scalelab.sweep.pack import train_pack
    from scalelab.train.program import cache_compilations

    cache_compilations()
    trials = {name: ConfigDict(config) for name, config in configs.items()}
    with stop_on_signals() as stop:
        verdicts = train_pack(folder, pack, trials, stop=stop, allow=allow)
    sys.exit(STOPPED if "stopped" in verdicts.values() else 0)


def mark_failed(folder: pathlib.Path, pack: str, trials: Sequence[str], code: int) -> str:
    """Note in the runs of a crashed pack that it crashed; returns the log's last line, which says why."""
    log = folder / "packs" / pack / "log.txt"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    why = lines[-1] if lines else f"exit code {code}, nothing logged"
    for trial in trials:
        place = folder / "runs" / trial
        place.mkdir(parents=True, exist_ok=True)
        records.event(place, "failed", None, why)
    return why
