"""A bounded pool on this machine: workers that live as long as the study, each with one pack at a time.

Workers come from a fork server that has imported jax but not initialised it. A compiled program serves all later packs
of its worker, so a pack goes to the worker that has compiled its program. A pack that fails ends its worker, and a new
worker takes the rest: a crash loses its own trials only. A pack whose worker was killed is started again, twice at
most. Workers report by files (run folders, `packs/KEY/log.txt`, `packs/KEY/spent.jsonl`); the parent hands out packs,
watches, and asks for a stop. A worker's pipe closes with its parent: it saves its pack and ends, and the fork server
ends with the last worker. A fork server that dies alone takes nobody with it.
"""

import collections
import contextlib
import dataclasses
import multiprocessing
import os
import pathlib
import sys
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from multiprocessing import connection, forkserver, resource_tracker
from typing import Any

from ml_collections import ConfigDict

from scalelab import config as config_lib
from scalelab import git, signals, user_code
from scalelab.errors import BadInput
from scalelab.hardware.chips import expects_accelerator
from scalelab.sweep.executors import deaths, devices
from scalelab.sweep.executors.worker import STOPPED_EXIT_CODE, run_worker

POLL_S = 0.2
START_TRIES, START_PAUSE_S = 50, 0.2  # of a worker whose fork server was killed
PRELOADED_MODULES = ["scalelab.sweep.pack", "orbax.checkpoint", "grain"]
MOST_PROGRAMS = 8  # a worker with so many compiled programs is replaced: it would hold them all, some 50 MB each
PackJobs = Mapping[str, Mapping[str, ConfigDict]]  # {pack: {trial: config}}
WatchTrials = Callable[[Sequence[str]], None]


def worker_count(configs: Sequence[ConfigDict]) -> int:
    """Number of workers: `sweep.workers`; for 0 one per CPU core (tiny models don't fill two), or per accelerator.

    Runs with a mesh of several accelerators get them all, one run after the other.
    """
    if requested := configs[0].sweep.workers:
        return int(requested)
    if not expects_accelerator():
        return len(_cores())
    return 1 if any(devices.devices_a_run(config) != 1 for config in configs) else len(devices.list_accelerators()) or 1


@dataclasses.dataclass
class _Worker:
    """A process, our end of its pipe, its cores and accelerator, the pack it trains now, the programs it compiled."""

    process: Any
    pipe: connection.Connection
    share: tuple[list[int], dict[str, str]]
    pack: str | None = None
    programs: set[Hashable] = dataclasses.field(default_factory=set)
    stop_sent: bool = False
    has_closed: bool = False  # its end of the pipe

    def has_died(self) -> bool:
        """Whether the process has ended. If its fork server was killed, only its end of the pipe tells."""
        return not self.process.is_alive() and (self.has_closed or self.process.exitcode != deaths.UNKNOWN_EXIT_CODE)

    def signs(self) -> list[Any]:
        """Objects that become ready when the process reports or ends; no sentinel once its fork server is gone."""
        is_known = self.process.exitcode != deaths.UNKNOWN_EXIT_CODE
        return [self.pipe, self.process.sentinel] if is_known else [self.pipe]


class WorkerPool:
    """A pool of as many processes as `worker_count` gives for `configs` (of all trials, or of one).

    They start when there is work for them and end when the context is left. A worker whose parent died saves its pack
    and ends.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        configs: Sequence[ConfigDict],
        allow: Collection[str] = (),
        take_over: bool = False,
        judge: Callable[[pathlib.Path], str] | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder, self.options, self.report = folder, (tuple(allow), take_over, judge), report
        self.context = _context()
        workers = worker_count(configs)
        # Cores and environment of workers that are not running.
        self.free = list(zip(_split_cores(workers), devices.split_accelerators(workers, configs), strict=True))
        self.workers: list[_Worker] = []

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: Any) -> None:
        for worker in self.workers:
            worker.pipe.close()  # a waiting worker ends; a training worker saves first
        for worker in self.workers:
            worker.process.join()

    def run(
        self,
        jobs: PackJobs,
        watch: WatchTrials = lambda running: None,
        stop: Callable[[], bool] = lambda: False,
        code: Mapping[str, git.RepoState] | None = None,
    ) -> dict[str, int]:
        """Train `{pack: {trial: config}}`, roughly in this order. Returns each pack's exit code.

        0 trained, 1 failed (its log holds the reason; other packs go on), 75 stopped, negative: killed by that signal
        again and again. `watch` is called often, with the running packs. Packs that were not started when `stop` turns
        true are left out of the result.
        """
        programs = {pack: _program(configs) for pack, configs in jobs.items()}
        waiting, codes, died = dict(programs), dict[str, int](), collections.Counter[str]()
        while waiting or self._busy():
            if stop():
                waiting.clear()
                self._ask_to_stop()
            self._hand_out(jobs, waiting, code)
            watch([worker.pack for worker in self._busy() if worker.pack])
            connection.wait([sign for worker in self._busy() for sign in worker.signs()], POLL_S)
            for pack, exit_code in self._collect_ended().items():
                died[pack] += deaths.is_death(exit_code)
                if not deaths.is_death(exit_code):
                    codes[pack] = exit_code
                elif stop():
                    codes[pack] = STOPPED_EXIT_CODE  # the last save stands
                elif died[pack] > deaths.MOST_RESTARTS:
                    codes[pack] = exit_code
                else:  # after the others: the memory that it lacked may be free then
                    waiting[pack] = programs[pack]
                    self.report(deaths.note_restart(self.folder, pack, list(jobs[pack]), exit_code, died[pack]))
        return codes

    def _ask_to_stop(self) -> None:
        """Ask busy workers to stop, once and by pipe: a signal to the group reached them; a second would be urgent."""
        for worker in self._busy():
            if not worker.stop_sent:
                worker.stop_sent = True
                with contextlib.suppress(OSError):  # the worker has just died
                    worker.pipe.send(None)

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self.workers if worker.pack]

    def _hand_out(self, jobs: PackJobs, waiting: dict[str, Hashable], code: Mapping[str, git.RepoState] | None) -> None:
        """Give every idle worker a pack, and start workers while there are packs and cores for them."""
        while waiting and (worker := self._idle()):
            others = {program for other in self.workers if other is not worker for program in other.programs}
            pack = choose_pack(waiting, worker.programs, others)
            if worker.programs and _wants_fresh_process(jobs[pack]):
                self._retire(worker)
                continue
            worker.pack = pack
            worker.programs.add(waiting.pop(pack))
            with contextlib.suppress(OSError):  # the worker died while it waited: `_collect_ended` sees it
                configs = {name: config.to_dict() for name, config in jobs[pack].items()}
                worker.pipe.send((pack, configs, user_code.export_permissions(), code))

    def _idle(self) -> _Worker | None:
        for worker in [worker for worker in self.workers if not worker.pack]:
            if worker.process.is_alive():
                return worker
            self._retire(worker)
        return self._start() if self.free else None

    def _start(self) -> _Worker:
        share = self.free.pop()
        for tries_left in reversed(range(START_TRIES)):
            here, there = self.context.Pipe()
            process = self.context.Process(target=run_worker, args=(self.folder, there, *share, *self.options))
            try:
                with _without_main_import():
                    _ensure_fork_server()
                    process.start()
                break
            except (EOFError, OSError):  # the fork server was killed; while it dies it seems to live, and refuses
                here.close()  # a worker that it has started nevertheless ends
                if not tries_left:
                    raise
                time.sleep(START_PAUSE_S)
            finally:
                there.close()
        self.workers.append(_Worker(process, here, share))
        return self.workers[-1]

    def _collect_ended(self) -> dict[str, int]:
        """The exit codes of packs that ended since the last call; workers that can't go on are retired."""
        codes = {}
        for worker in self._busy():
            pack, alive = worker.pack, worker.process.is_alive()
            trained = _has_reported(worker)  # after `alive`: the worker may report and end in between
            if not trained and (alive or not worker.has_died()):
                continue
            assert pack
            codes[pack], worker.pack = 0, None
            if not trained:
                worker.process.join()
                codes[pack] = worker.process.exitcode or STOPPED_EXIT_CODE  # 0: stopped before the pack started
            if not trained or len(worker.programs) >= MOST_PROGRAMS:
                self._retire(worker)
        return codes

    def _retire(self, worker: _Worker) -> None:
        worker.pipe.close()
        worker.process.join()
        self.workers.remove(worker)
        self.free.append(worker.share)


def choose_pack(waiting: Mapping[str, Hashable], compiled: Collection[Hashable], others: Collection[Hashable]) -> str:
    """Choose a worker's next pack from `{pack: program}`: the first whose program it has compiled, or nobody has.

    If there is none, the first pack: compiling a program again is better than waiting.
    """
    preferred = (pack for pack, program in waiting.items() if program in compiled or program not in others)
    return next(preferred, next(iter(waiting)))


def _program(configs: Mapping[str, ConfigDict]) -> Hashable:
    """A key of a pack's compiled programs. If it can't be computed, the key is unique: the pack will fail by itself."""
    config = next(iter(configs.values()))
    try:
        return config_lib.static(config), min(config.train.steps_per_dispatch, config.train.steps), len(configs)
    except (BadInput, LookupError, TypeError, ValueError):
        return object()


def _wants_fresh_process(configs: Mapping[str, ConfigDict]) -> bool:
    """Whether this pack needs XLA flags that are set before jax starts (`determinism.deterministic_xla_flags`)."""
    return bool(next(iter(configs.values())).train.deterministic)


def _has_reported(worker: _Worker) -> bool:
    """Whether the worker has reported that its pack is trained."""
    try:
        return worker.pipe.poll() and bool(worker.pipe.recv())
    except (EOFError, OSError):
        worker.has_closed = True
        return False


def _context() -> Any:
    """multiprocessing with a fork server (and a resource tracker) that survives signals to the process group.

    If the server died, the workers' exit codes would be lost. Workers inherit the blocked signals until they install
    their own handlers, so none dies while it starts.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED_MODULES)
    _ensure_fork_server()
    return context


def _ensure_fork_server() -> None:
    """Start the fork server, again if it was killed."""
    with signals.block_stop_signals():
        resource_tracker.ensure_running()  # unblocks SIGTERM and SIGINT once it has started
        with signals.block_stop_signals():
            forkserver.ensure_running()


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _split_cores(workers: int) -> list[list[int]]:
    """The cores of each worker; all cores for each if there are more workers than cores."""
    cores = _cores()
    return [cores[i::workers] for i in range(workers)] if workers <= len(cores) else [cores] * workers


@contextlib.contextmanager
def _without_main_import():
    """Keep children from running the caller's script again: they get all they need as arguments."""
    main = sys.modules["__main__"]
    originals = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    for attribute in originals:
        setattr(main, attribute, None)
    try:
        yield
    finally:
        for attribute, value in originals.items():
            setattr(main, attribute, value)
