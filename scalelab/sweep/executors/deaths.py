"""Workers that were killed, failed or refused their pack: which exit codes say so, and what is written of it."""

import pathlib
import shutil
import signal
from collections.abc import Mapping, Sequence

from scalelab.errors import BadInput
from scalelab.record import lock, records
from scalelab.sweep.executors.worker import REFUSED_EXIT_CODE
from scalelab.untrusted.files import read_end

MOST_RESTARTS = 2  # of a pack whose worker was killed; after one more death it has failed
UNKNOWN_EXIT_CODE = 255  # multiprocessing's, of a process whose fork server was killed


def is_death(code: int) -> bool:
    """Whether a worker with this exit code was killed: an error of its own has another code."""
    return code < 0 or code == UNKNOWN_EXIT_CODE


def describe_death(code: int) -> str:
    """How a killed worker ended, e.g. `was killed by SIGKILL`."""
    if code == UNKNOWN_EXIT_CODE:
        return "ended without an exit code"
    names = {number.value: number.name for number in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"


def note_restart(folder: pathlib.Path, pack: str, trials: Sequence[str], code: int, deaths: int) -> str:
    """Write into the logbook of each trial that its worker was killed and is started again; returns a line on it."""
    text = f"its worker {describe_death(code)}; started again ({deaths} of {MOST_RESTARTS})"
    for trial in trials:
        place = folder / "runs" / trial
        if place.is_dir():  # else it was killed before it began
            records.write_event(place, "warning", None, text)
    return f"pack {pack} ({trials[0]}{f' and {len(trials) - 1} more' if len(trials) > 1 else ''}): {text}"


def refuse_all(folder: pathlib.Path, codes: Mapping[str, int], new_packs: Sequence[str]) -> None:
    """BadInput, with the first reason, if workers refused every pack; then the folders of `new_packs` are removed."""
    if set(codes.values()) != {REFUSED_EXIT_CODE}:
        return
    reasons = [_last_words(folder, pack) for pack in codes]
    for pack in new_packs:
        shutil.rmtree(folder / "packs" / pack, ignore_errors=True)
    lock.remove_empty([folder / "packs"])
    raise BadInput(reasons[0])


def mark_failed(folder: pathlib.Path, pack: str, trials: Sequence[str], code: int) -> str:
    """Write a `failed` event into each run of a failed pack; returns the reason, by its log's last line or its end."""
    words = _last_words(folder, pack)
    why = words or f"exit code {code}, nothing logged"
    if code < 0:
        hint = " (out of memory?)" if -code == signal.SIGKILL else f": {words}" if words else ""
        why = f"{describe_death(code).removeprefix('was ')} {MOST_RESTARTS + 1} times{hint}"
    for trial in trials:
        place = folder / "runs" / trial
        place.mkdir(parents=True, exist_ok=True)
        records.write_event(place, "failed", None, why)
    return why


def _last_words(folder: pathlib.Path, pack: str) -> str:
    """The last line of a pack's log; "" without any."""
    lines = read_end(folder / "packs" / pack / "log.txt").strip().splitlines()
    return lines[-1] if lines else ""
