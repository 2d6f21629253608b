"""Waiting for a folder that another process holds: a trial whose lock is held is running, and not lost."""

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator

from scalelab.index import alive
from scalelab.record import lock

WAIT_POLL_S = 0.5


@contextlib.contextmanager
def wait_for_folder(
    folder: lock.Folder,
    take_over: bool = False,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = lambda text: None,
) -> Iterator[bool]:
    """Hold a folder once its owner has left it. Yields whether it is held: not if `stop` turned true first.

    `report` gets a line on who is waited for, and the warning if a lock was taken over. BadInput as of
    `lock.hold_folder`, for an owner of whom nobody can tell whether it lives.
    """
    with contextlib.ExitStack() as held:
        is_held, has_reported = False, False
        while not is_held:
            try:
                warning, is_held = held.enter_context(lock.hold_folder(folder, take_over=take_over)), True
            except lock.FolderHeld as refusal:
                if stop():
                    break
                if not has_reported:
                    report(f"{refusal}; this command waits until it is free")
                has_reported, warning = True, None
                time.sleep(WAIT_POLL_S)
            if warning:
                report(warning)
        yield is_held


def describe_held_packs(folder: pathlib.Path, packs: Iterable[str]) -> list[str]:
    """A line for each pack of a sweep that a living process trains, or saves: a worker waits for it."""
    return [
        f"pack {pack} is held by a process of an earlier sweep, which saves it and ends: its worker waits for that"
        for pack in packs
        if alive.is_held(folder / "packs" / pack)
    ]
