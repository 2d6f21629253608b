"""A pool of processes on which `scalelab prepare` writes its units and shards."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

from scalelab.data.prepare.units import Stopped
from scalelab.errors import WorkFailed

WAIT_S = 0.2  # seconds between two checks of `stop`

_worker_state: list[Any] = []  # in a worker: the value `begin` returned


def run_tasks(
    work: Callable[[Any, Any], Any],
    tasks: Iterable[Any],
    begin: Callable[[Any], Any],
    shared: Any,
    workers: int,
    stop: Callable[[], bool],
) -> Iterator[tuple[Any, Any]]:
    """Yield (task, work(task, begin(shared))) in order of completion; `begin` runs once a process.

    One worker is this process. Raises Stopped once `stop()` is true, and whatever a task raises, after all workers
    ended.
    """
    if workers == 1:
        state = begin(shared)
        for task in tasks:
            if stop():
                raise Stopped
            yield task, work(task, state)
        return
    others = multiprocessing.active_children()
    executor = futures.ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start, initargs=(begin, shared)
    )
    try:
        yield from _collect(executor, work, iter(tasks), 2 * workers, stop)
        executor.shutdown()
    except futures.BrokenExecutor as error:
        if stop():  # schedulers send the signal to the whole process group
            raise Stopped from error
        raise WorkFailed(
            "a worker was killed, by the system for memory or by hand; the same command goes on, "
            "with --workers=1 on less"
        ) from error
    finally:
        for process in multiprocessing.active_children():
            if process not in others:
                process.terminate()
        executor.shutdown(cancel_futures=True)


def _collect(
    executor: futures.Executor, work: Callable, tasks: Iterator[Any], most: int, stop: Callable[[], bool]
) -> Iterator[tuple[Any, Any]]:
    waiting: dict[futures.Future, Any] = {}
    while True:
        while len(waiting) < most and (task := next(tasks, None)) is not None:
            waiting[executor.submit(_run_task, work, task)] = task
        if not waiting:
            return
        done, _ = futures.wait(waiting, WAIT_S, futures.FIRST_COMPLETED)
        for future in done:
            yield waiting.pop(future), future.result()
        if stop():
            raise Stopped


def _start(begin: Callable[[Any], Any], shared: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C reaches every process of a terminal; the parent decides
    threading.Thread(target=_follow_parent, daemon=True).start()
    _worker_state.append(begin(shared))


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_task(work: Callable[[Any, Any], Any], task: Any) -> Any:
    return work(task, _worker_state[0])
