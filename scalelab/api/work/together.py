"""Run one process of several that train a run together, and end it if another fails."""

import os
import pathlib
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from scalelab import config as config_lib
from scalelab.errors import BadInput, WorkFailed
from scalelab.parallel.processes import run_together
from scalelab.parallel.pulse import Pulse, run_with_timeout
from scalelab.record import lock
from scalelab.train.checkpoints import manifest
from scalelab.untrusted.text import PlainStream

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from scalelab.parallel.peers import ProcessPlace


R = TypeVar("R")


def work_together(
    place: "ProcessPlace",
    config: "ConfigDict",
    folder: pathlib.Path,
    allow: frozenset[str],
    work: Callable[[Pulse], R],
) -> R:
    """Do this process's part of the work. A failure ends it at once: jax would wait for the others to leave."""
    pulse = Pulse()

    def end(code: int, why: str) -> NoReturn:
        _write_last_line(f"scalelab: {place.name()}: {why}\n")
        run_with_timeout(10.0, lock.release_all_locks)
        os._exit(code)

    def end_with_others(code: int, why: str) -> None:
        end(code, why if code == 2 else f"{why}; stopped here too: {_resume_hint(folder)}")

    facts = {key: str(value) for key, value in config_lib.leaves(config).items()}
    facts |= {"--workdir": str(folder.absolute()), "--allow-change": " ".join(sorted(allow))}
    _drop_native_output()
    try:
        with run_together(place, facts, folder, end_with_others, pulse, config.train.stall_s):
            return work(pulse)
    except (BadInput, WorkFailed) as error:
        end(2 if isinstance(error, BadInput) else 1, str(error))
    except BaseException:  # of any kind: the other processes are told, or they would wait for this one
        end(1, traceback.format_exc())


def _resume_hint(folder: pathlib.Path) -> str:
    steps = manifest.list_steps(folder / "checkpoints")
    return f"the same commands resume from step {steps[-1]}" if steps else "nothing was saved yet"


def _drop_native_output() -> None:
    """Keep standard output for the result: gloo's own lines there (one per device) are dropped."""
    sys.stdout = PlainStream(os.fdopen(_silence(1), "w"))  # type: ignore[assignment]


def _write_last_line(text: str) -> None:
    """Write to standard error and silence it afterwards: jax prints a whole page when the coordinator is gone."""
    os.write(_silence(2), text.encode())


def _silence(descriptor: int) -> int:
    """Drop all later writes to `descriptor`; returns a copy that still writes."""
    copy = os.dup(descriptor)
    with open(os.devnull, "w") as null_device:
        os.dup2(null_device.fileno(), descriptor)
    return copy
