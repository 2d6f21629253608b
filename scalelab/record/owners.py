"""Owners of locked folders: the process that a lock's text names, and whether it lives on this host."""

import contextlib
import dataclasses
import os
import socket
import time

from scalelab.errors import BadInput
from scalelab.untrusted.files import read_text
from scalelab.untrusted.text import printable


@dataclasses.dataclass(frozen=True)
class LockOwner:
    """The process that holds a folder.

    `job` and `restart`: Slurm's job and how often it was requeued; `beats`: whether the process renews the file's time
    as a heartbeat.
    """

    host: str
    process: int
    started: str
    job: str = ""
    restart: int = 0
    beats: bool = True

    def __str__(self) -> str:
        job = f", job {self.job} restart {self.restart}" if self.job else ""
        return f"host {self.host}, process {self.process}, started {self.started}{job}{', beating' * self.beats}"


def this_process() -> LockOwner:
    """This process as an owner."""
    job, restart = (os.environ.get(f"SLURM_{name}", "") for name in ("JOB_ID", "RESTART_COUNT"))
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    return LockOwner(socket.gethostname(), os.getpid(), started, job, int(restart) if restart.isdecimal() else 0)


def parse_owner(text: str) -> LockOwner | None:
    """Parse the owner in a lock's text; None for an empty or damaged text."""
    parts = dict(part.strip().partition(" ")[::2] for part in text.split(","))
    job, _, restart = parts.get("job", "").partition(" restart ")
    try:
        process, restarts = int(parts["process"]), int(restart or 0)
        texts = [printable(text) for text in (parts["host"], parts["started"], job)]
    except (KeyError, ValueError):
        return None
    if not (0 < process < 2**31 and 0 <= restarts < 2**31):
        return None
    return LockOwner(texts[0], process, texts[1], texts[2], restarts, "beating" in parts)


def is_process_alive(process: int) -> bool:
    """Whether a process with this number lives on this host; a killed one that nobody waited for does not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    with contextlib.suppress(OSError, IndexError, BadInput):  # outside Linux
        return read_text(f"/proc/{process}/stat").rpartition(")")[2].split()[0] != "Z"
    return True
