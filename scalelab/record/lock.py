"""Locks of folders: one living process holds a folder, on any host.

The kernel's lock (flock) on `.lock` ends with its owner; the file's text names the owner, and its time is a heartbeat
by the file server's clock. About another host the kernel may know nothing (locks local to a client), or keep locks of
dead nodes (NFS 3). Then an earlier start of this Slurm job, the heartbeat's age, or `--take-over` decides. Without
flock, the file's exclusive creation is the lock.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence

from scalelab.errors import BadInput
from scalelab.record.owners import LockOwner, is_process_alive, parse_owner, this_process
from scalelab.untrusted.files import open_or_create, read_bytes, read_text, replace_file

HEARTBEAT_S = 10.0
LEASE_S = 120.0  # seconds of silence after which an owner on another host is gone; NFS may show a time a minute late
LEASE_FILE = ".lease.json"  # in a store's local copy, which has no lock: tells whether the owner lives
NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)
Folder = str | os.PathLike[str]


class FolderHeld(BadInput):
    """The refusal of a folder whose owner seems to live; a caller may wait for it."""


HELD_LOCKS: dict[pathlib.Path, tuple[LockOwner, bool]] = {}  # path -> (this process, is the file's existence the lock)


@contextlib.contextmanager
def hold_folder(folder: Folder, option: str = "--workdir", take_over: bool = False) -> Iterator[str | None]:
    """Hold a folder (the value of a command's `option`) for this process. Yields a warning if a lock was taken over.

    BadInput if another process holds it, or may hold it; `take_over` asserts that an owner on another host is gone. A
    process whose lock was taken over while it lived (suspended, say) ends as soon as it notices. After BadInput the
    lock and the folders made for it are removed.
    """
    path = pathlib.Path(folder).absolute() / ".lock"
    is_new, made = not os.path.lexists(path), list_missing(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, exclusive, warning = _acquire_lock(path, str(folder), option, take_over)
    owner, left = this_process(), threading.Event()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{owner}\n".encode(), 0)
    HELD_LOCKS[path] = owner, exclusive
    threading.Thread(target=_renew_heartbeat, args=(path, owner, left), daemon=True, name="lock").start()
    try:
        yield warning
    except BadInput:
        if is_new and _is_at(path, descriptor):
            path.unlink()
            remove_empty(made)
        raise
    finally:  # not reached after a SIGKILL: then the owner's name stays for the next process to read
        left.set()
        release_lock(path)
        os.close(descriptor)


@contextlib.contextmanager
def undo_if_refused(folder: Folder, *patterns: str) -> Iterator[None]:
    """Within it a BadInput restores the folder's files of these patterns: a mistake changes nothing.

    Folders that existed before stay, empty ones too. Once a run was begun in `runs/`, nothing is undone: the files are
    needed to tell what the runs are.
    """
    place = pathlib.Path(folder)
    missing, runs, before = list_missing(place), _list_begun(place), _read_files(place, patterns)
    folders = _list_folders(place, patterns)
    try:
        yield
    except BadInput:
        if _list_begun(place) == runs:
            for path, content in _read_files(place, patterns).items():
                if path not in before:
                    path.unlink(missing_ok=True)
                elif content != before[path]:
                    replace_file(path, before[path])
            new = _list_folders(place, patterns) - folders
            for each in sorted(new, reverse=True):  # a folder's content comes before the folder
                remove_empty([each])
            remove_empty(missing)
        raise


def _list_folders(folder: pathlib.Path, patterns: Sequence[str]) -> set[pathlib.Path]:
    """Folders below `folder` that are runs, or may hold files of these patterns."""
    above = {str(each) for pattern in ("runs/*/record.json", *patterns) for each in pathlib.PurePath(pattern).parents}
    return {path for pattern in above - {"."} for path in folder.glob(pattern) if path.is_dir()}


def _list_begun(folder: pathlib.Path) -> set[pathlib.Path]:
    """Folders of runs that are not empty."""
    return {run for run in folder.glob("runs/*") if run.is_dir() and any(run.iterdir())}


def _read_files(folder: pathlib.Path, patterns: Sequence[str]) -> dict[pathlib.Path, bytes]:
    return {path: read_bytes(path) for pattern in patterns for path in folder.glob(pattern) if path.is_file()}


def list_missing(folder: pathlib.Path) -> list[pathlib.Path]:
    """The missing ones among the folder and its parents, lowest first."""
    return [each for each in (folder, *folder.parents) if not each.exists()]


def remove_empty(folders: Sequence[pathlib.Path]) -> None:
    """Remove the folders in order, up to one that is not empty."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def release_lock(path: pathlib.Path) -> None:
    """Release a lock: remove this process's name from it. Another owner's name stays."""
    owner, exclusive = HELD_LOCKS.pop(path, (None, False))
    with contextlib.suppress(OSError, BadInput):
        if owner and parse_owner(read_text(path)) == owner:
            path.unlink() if exclusive else os.truncate(path, 0)


def release_all_locks() -> None:
    """Release all locks of this process: for callers that end it inside `hold_folder`."""
    for path in list(HELD_LOCKS):
        release_lock(path)


def _acquire_lock(path: pathlib.Path, folder: str, option: str, take_over: bool) -> tuple[int, bool, str | None]:
    """Acquire the lock: (the open file, whether its existence is the lock, a warning if it was taken over)."""
    warning = None
    for _ in range(5):  # others may come and go meanwhile
        descriptor, ours, exclusive = _open_lock(path)
        try:
            owner = parse_owner(os.pread(descriptor, 1000, 0).decode(errors="replace"))
            refusal, news = _judge_lock(descriptor, path.parent, owner, ours, exclusive, take_over)
            if refusal:
                may_leave = owner is None or owner.host == socket.gethostname() or owner.beats
                raise (FolderHeld if may_leave else BadInput)(f"{folder} {refusal.format(option=option)}")
            warning = f"took over {folder}: {owner} {news}" if news else warning
            if not ours:
                _move_aside(path, descriptor)
            elif _is_at(path, descriptor):
                return os.dup(descriptor), exclusive, warning
        finally:
            os.close(descriptor)
    raise FolderHeld(f"{folder} is held by another process: stop it, or use another {option}")


def _open_lock(path: pathlib.Path) -> tuple[int, bool, bool]:
    """Open the lock: (the file, whether this process now has the lock, whether the file's existence is the lock)."""
    descriptor, created = open_or_create(path)
    try:
        _try_flock(descriptor)
    except BlockingIOError:
        return descriptor, False, False
    except OSError as error:
        if error.errno in NO_FLOCK:
            return descriptor, created, True
        os.close(descriptor)
        raise
    return descriptor, True, False


def _try_flock(descriptor: int) -> None:
    """Take the kernel's lock, or raise. Tries twice: `index.alive` holds it for a moment to see if an owner lives."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(0.01)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _judge_lock(
    descriptor: int, folder: pathlib.Path, owner: LockOwner | None, ours: bool, exclusive: bool, take_over: bool
) -> tuple[str, str]:
    """Judge a lock: (the reason to refuse it, what became of its owner); "" for the part that doesn't apply."""
    if owner is None:  # free, or just taken by a process that has not written its name yet
        fresh = not ours and (not exclusive or _seconds_since_heartbeat(descriptor, folder) < HEARTBEAT_S)
        return "is held by another process: stop it, or use another {option}" if fresh else "", ""
    if owner.host == socket.gethostname():
        alive = not ours and (not exclusive or _is_owner_alive(owner, descriptor, folder))
        refusal = f"is held by {owner}: stop it, or use another {{option}}"
        return (refusal, "") if alive else ("", "died without releasing it")
    this = this_process()
    if this.job and this.job == owner.job and this.restart > owner.restart:
        return "", "was this job before it was requeued"
    if take_over:
        return "", "has to make way"
    silent_s = _seconds_since_heartbeat(descriptor, folder)
    if owner.beats and silent_s > LEASE_S:
        return "", f"gave no sign of life for {silent_s:.0f} s"
    silence = f" and gave a sign of life {silent_s:.0f} s ago (gone is who gives none for {LEASE_S:.0f} s)"
    silence *= owner.beats
    return f"was not released by {owner}{silence}; if that process is gone, pass --take-over", ""


def _seconds_since_heartbeat(descriptor: int, folder: pathlib.Path) -> float:
    """Seconds since the lock's heartbeat, by the file server's clock."""
    with tempfile.TemporaryFile(dir=folder) as now:
        return os.fstat(now.fileno()).st_mtime - os.fstat(descriptor).st_mtime


def _is_owner_alive(owner: LockOwner, descriptor: int, folder: pathlib.Path) -> bool:
    """Whether an owner on this host lives. Its process number may be another's now (in a restarted container, ours)."""
    if owner.process == os.getpid():
        return folder / ".lock" in HELD_LOCKS
    alive = is_process_alive(owner.process)
    return alive and (not owner.beats or _seconds_since_heartbeat(descriptor, folder) < LEASE_S)


def _is_at(path: pathlib.Path, descriptor: int) -> bool:
    """Whether an open file is still the one at this path."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False


def _move_aside(path: pathlib.Path, descriptor: int) -> None:
    """Remove the judged file; if another process has replaced it since, put the new one back."""
    aside = path.with_name(f".lock.{socket.gethostname()}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        if not _is_at(aside, descriptor):
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
        aside.unlink()


def _renew_heartbeat(path: pathlib.Path, owner: LockOwner, left: threading.Event) -> None:
    """Renew the lock's time until its holder leaves; end the process if another has taken the lock over."""
    while not left.wait(HEARTBEAT_S):
        with contextlib.suppress(OSError, BadInput):  # a server that doesn't answer now, a file deleted by hand
            other = parse_owner(read_text(path))
            if other in (owner, None):
                os.utime(path)
            elif not left.is_set():
                os.write(2, f"scalelab: {path.parent} was taken over by {other}; this process ends\n".encode())
                os._exit(1)


@contextlib.contextmanager
def hold_file(path: Folder) -> Iterator[None]:
    """Hold a file for a moment, after all others have left it; without flock, by a file beside it."""
    beside = pathlib.Path(f"{path}.held")
    descriptor, _ = open_or_create(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
            _create_exclusively(beside)
        try:
            yield
        finally:
            beside.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _create_exclusively(path: pathlib.Path) -> None:
    """Create a file that doesn't exist, waiting until it is gone; one older than LEASE_S was left by a dead process."""
    while True:
        descriptor, created = open_or_create(path)
        try:
            if created:
                return
            if _seconds_since_heartbeat(descriptor, path.parent) > LEASE_S:
                _move_aside(path, descriptor)
        finally:
            os.close(descriptor)
        time.sleep(0.05)
