"""Who holds a folder: one living process, on whatever host.

The kernel's lock (flock) on `.lock` falls with its owner; the file's text says who that is, and its time is a heartbeat, read by
the file server's clock. Of another host the kernel may know nothing (locks local to a client) or too much (NFS 3 keeps those of
a node that died): there decide whether it is the same Slurm job's former life, the age of the heartbeat, and `--take-over`.
Where there is no flock, the file's exclusive creation takes its place.
"""

import contextlib
import dataclasses
import errno
import fcntl
import os
import pathlib
import socket
import tempfile
import threading
import time
from collections.abc import Iterator

from scalelab.errors import BadInput

BEAT_S = 10.0
LEASE_S = (
    120.0  # an owner on another host that was silent for so long is gone; NFS may show a file's time a minute late
)
NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)
Folder = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Owner:
    """Who holds a folder. `job` and `restart` are Slurm's job and how often it was requeued; `beats`: it renews the file's time."""

    host: str
    process: int
    started: str
    job: str = ""
    restart: int = 0
    beats: bool = True

    def __str__(self) -> str:
        job = f", job {self.job} restart {self.restart}" if self.job else ""
        return f"host {self.host}, process {self.process}, started {self.started}{job}{', beating' * self.beats}"


HELD: dict[pathlib.Path, tuple[Owner, bool]] = {}  # by this process; and whether the file's existence is the lock


def _this_process() -> Owner:
    job, restart = (os.environ.get(f"SLURM_{name}", "") for name in ("JOB_ID", "RESTART_COUNT"))
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    return Owner(socket.gethostname(), os.getpid(), started, job, int(restart) if restart.isdecimal() else 0)


def _parse(text: str) -> Owner | None:
    """The owner that a lock's text names; None for an empty or damaged one."""
    parts = dict(part.strip().partition(" ")[::2] for part in text.split(","))
    job, _, restart = parts.get("job", "").partition(" restart ")
    try:
        beats = "beating" in parts
        return Owner(parts["host"], int(parts["process"]), parts["started"], job, int(restart or 0), beats)
    except (KeyError, ValueError):
        return None


@contextlib.contextmanager
def hold(folder: Folder, option: str = "--workdir", take_over: bool = False) -> Iterator[str | None]:
    """Hold a folder (the value of a command's `option`) for this process. Yields a warning where a lock was taken over.

    BadInput where another process holds it, or may; `take_over` says that one on another host doesn't. A process whose lock
    was taken over all the same (it was suspended, say) ends as soon as it sees that.
    """
    path = pathlib.Path(folder).absolute() / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, exclusive, warning = _acquire(path, str(folder), option, take_over)
    owner, left = _this_process(), threading.Event()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{owner}\n".encode(), 0)
    HELD[path] = owner, exclusive
    threading.Thread(target=_beat, args=(path, owner, left), daemon=True, name="lock").start()
    try:
        yield warning
    finally:  # not reached by a SIGKILL: then the owner's name stays for the next one to read
        left.set()
        release(path)
        os.close(descriptor)


def release(path: pathlib.Path) -> None:
    """Take this process's name off a lock that it holds. Another's name stays."""
    owner, exclusive = HELD.pop(path, (None, False))
    with contextlib.suppress(OSError):
        if owner and _parse(path.read_text()) == owner:
            path.unlink() if exclusive else os.truncate(path, 0)


def release_all() -> None:
    """Release what this process holds: for who ends without leaving `hold`."""
    for path in list(HELD):
        release(path)


def _acquire(path: pathlib.Path, folder: str, option: str, take_over: bool) -> tuple[int, bool, str | None]:
    """(the open file, whether its existence is the lock, a warning where another's was taken over)."""
    warning = None
    for _ in range(5):  # others may come and go meanwhile
        descriptor, ours, exclusive = _open(path)
        try:
            owner = _parse(os.pread(descriptor, 1000, 0).decode(errors="replace"))
            refusal, news = _judge(descriptor, path.parent, owner, ours, exclusive, take_over)
            if refusal:
                raise BadInput(f"{folder} {refusal.format(option=option)}")
            warning = f"took over {folder}: {owner} {news}" if news else warning
            if not ours:
                _move_aside(path, descriptor)
            elif _is_at(path, descriptor):
                return os.dup(descriptor), exclusive, warning
        finally:
            os.close(descriptor)
    raise BadInput(f"{folder} is held by another process: stop it, or use another {option}")


def _open(path: pathlib.Path) -> tuple[int, bool, bool]:
    """(the open file, whether the lock is now this process's, whether the file's existence is the lock)."""
    try:
        descriptor, created = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644), True
    except FileExistsError:
        descriptor, created = os.open(path, os.O_RDWR | os.O_CREAT, 0o644), False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return descriptor, False, False
    except OSError as error:
        if error.errno in NO_FLOCK:
            return descriptor, created, True
        os.close(descriptor)
        raise
    return descriptor, True, False


def _judge(
    descriptor: int, folder: pathlib.Path, owner: Owner | None, ours: bool, exclusive: bool, take_over: bool
) -> tuple[str, str]:
    """(why the lock can't be had, what became of its owner); "" for what doesn't apply."""
    if owner is None:  # free, or just taken by who has not written his name yet
        fresh = not ours and (not exclusive or _silence(descriptor, folder) < BEAT_S)
        return "is held by another process: stop it, or use another {option}" if fresh else "", ""
    if owner.host == socket.gethostname():
        alive = not ours and (not exclusive or _lives(owner, descriptor, folder))
        refusal = f"is held by {owner}: stop it, or use another {{option}}"
        return (refusal, "") if alive else ("", "died without releasing it")
    this = _this_process()
    if this.job and this.job == owner.job and this.restart > owner.restart:
        return "", "was this job before it was requeued"
    if take_over:
        return "", "has to make way"
    silent_s = _silence(descriptor, folder)
    if owner.beats and silent_s > LEASE_S:
        return "", f"gave no sign of life for {silent_s:.0f} s"
    silence = (
        f" and gave a sign of life {silent_s:.0f} s ago (gone is who gives none for {LEASE_S:.0f} s)" * owner.beats
    )
    return f"was not released by {owner}{silence}; if that process is gone, pass --take-over", ""


def _silence(descriptor: int, folder: pathlib.Path) -> float:
    """Seconds since the heartbeat, by the file server's clock."""
    with tempfile.TemporaryFile(dir=folder) as now:
        return os.fstat(now.fileno()).st_mtime - os.fstat(descriptor).st_mtime


def _lives(owner: Owner, descriptor: int, folder: pathlib.Path) -> bool:
    """Whether an owner on this host does; a number alone may be another's by now (in a container started again: this one's)."""
    if owner.process == os.getpid():
        return folder / ".lock" in HELD
    try:
        os.kill(owner.process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not owner.beats or _silence(descriptor, folder) < LEASE_S


def _is_at(path: pathlib.Path, descriptor: int) -> bool:
    """Whether an open file is still the one that stands at this path."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False


def _move_aside(path: pathlib.Path, descriptor: int) -> None:
    """Remove the file that was judged; one that somebody else has put there since is put back."""
    aside = path.with_name(f".lock.{socket.gethostname()}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        if not _is_at(aside, descriptor):
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
        aside.unlink()


def _beat(path: pathlib.Path, owner: Owner, left: threading.Event) -> None:
    """Renew the lock's time until its holder leaves; end the process where another has taken the lock over."""
    while not left.wait(BEAT_S):
        with contextlib.suppress(OSError):  # a server that doesn't answer now, a file that was deleted by hand
            other = _parse(path.read_text())
            if other in (owner, None):
                os.utime(path)
            elif not left.is_set():
                os.write(2, f"scalelab: {path.parent} was taken over by {other}; this process ends\n".encode())
                os._exit(1)


@contextlib.contextmanager
def wait_for(path: Folder) -> Iterator[None]:
    """Hold a file for a moment, once all others have left it; where there is no flock, a file beside it."""
    beside = pathlib.Path(f"{path}.held")
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_FLOCK:
                raise
            _create(beside)
        try:
            yield
        finally:
            beside.unlink(missing_ok=True)


def _create(path: pathlib.Path) -> None:
    """Create a file that nobody else has, waiting for whoever has it; one of LEASE_S ago was left by the dead."""
    while True:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            return
        with contextlib.suppress(FileNotFoundError), open(path) as file:
            if _silence(file.fileno(), path.parent) > LEASE_S:
                _move_aside(path, file.fileno())
        time.sleep(0.05)
