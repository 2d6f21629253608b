"""Wait for a folder that another process holds: a trial with a held lock is running, not lost."""

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator

from scalelab.index import alive
from scalelab.record import lock
from scalelab.study import is_open

WAIT_POLL_S = 0.5


def wait_for_folder(
    folder: lock.Folder,
    take_over: bool = False,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = lambda text: None,
) -> contextlib.AbstractContextManager[bool]:
    """Hold a folder once its owner has left it, as `wait_until_free` does. BadInput as of `lock.hold_folder`.

    Within a study of this folder, which holds it, there is nothing to wait for.
    """
    if is_open(folder):
        return contextlib.nullcontext(True)
    return wait_until_free(lambda: lock.hold_folder(folder, take_over=take_over), stop, report)


@contextlib.contextmanager
def wait_until_free(
    hold: Callable[[], contextlib.AbstractContextManager[str | None]],
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = lambda text: None,
    polls: int = 1,
) -> Iterator[bool]:
    """Enter `hold()` as soon as no other process holds it. Yields False if `stop` turned true first. `report` gets a
    line on the owner, and the warning that `hold` yields. It tries again after each `polls` polls of `stop`. BadInput
    as for `hold`, if nobody can tell whether the owner lives.
    """
    with contextlib.ExitStack() as held:
        is_held, has_reported = False, False
        while not is_held:
            try:
                warning, is_held = held.enter_context(hold()), True
            except lock.FolderHeld as refusal:
                if stop():
                    break
                if not has_reported:
                    report(f"{refusal}; this command waits until it is free")
                has_reported, warning = True, None
                for _ in range(polls):
                    if not stop():
                        time.sleep(WAIT_POLL_S)
            if warning:
                report(warning)
        yield is_held


def describe_held_packs(folder: pathlib.Path, packs: Iterable[str]) -> list[str]:
    """Describe, one line each, the packs of a sweep that a living process trains or saves: a worker waits for them."""
    return [
        f"pack {pack} is held by a process of an earlier sweep, which saves it and ends: its worker waits for that"
        for pack in packs
        if alive.is_held(folder / "packs" / pack)
    ]
