"""What Linux tells of a process: those below it, its memory, and the time that it ran and waited."""

import contextlib
import os
import pathlib


def descendants(pid: int) -> list[int]:
    """The processes below one, children of children too."""
    below: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            children = pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split()
            below += [each for child in map(int, children) for each in (*descendants(child), child)]
    return below


def resident_bytes(pid: int) -> int:
    """Resident bytes of a process; 0 if it is gone."""
    return _status(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """The most resident bytes of a process since its last `reset_peak`."""
    return _status(pid, "VmHWM")


def _status(pid: int, name: str) -> int:
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return 0


def reset_peak(pid: int) -> None:
    """Let `peak_bytes` begin anew."""
    with contextlib.suppress(OSError):
        pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")


def ran_and_waited_s(pid: int) -> tuple[float, float]:
    """Seconds that a process's first thread has run, and has waited for a core; 0 where Linux doesn't tell."""
    try:
        ran, waited = pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[:2]
        return int(ran) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):
        return 0.0, 0.0
