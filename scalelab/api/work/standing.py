"""How a sweep stands, followed or at once, which setting is best, and how its jobs are cancelled."""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scalelab.api.arguments import FOLDER, RUNS, WORKDIR, Facts, check_arguments, list_paths, several
from scalelab.api.door import Path, Progress, silent
from scalelab.errors import BadInput
from scalelab.stores import mirror
from scalelab.stores.copies import copy_here, kept_up_to_date
from scalelab.stores.urls import url_of, work_folder
from scalelab.sweep import status
from scalelab.sweep.executors import sweep_jobs
from scalelab.sweep.live import LiveView, read_live

if TYPE_CHECKING:
    from scalelab.report.serve import LiveServer
    from scalelab.sweep.answer.ranking import SweepAnswer
    from scalelab.sweep.answer.winner import Winner


@dataclasses.dataclass(frozen=True)
class SweepStatus:
    """A sweep's trials as rows (name, status, step, losses), their answer, and a description of its queued jobs."""

    folder: pathlib.Path
    rows: list[dict[str, Any]]
    answer: "SweepAnswer"
    queue: str


@check_arguments(workdir=WORKDIR)
def sweep_status(workdir: Path, all_grids: bool = False, progress: Progress = silent) -> SweepStatus:
    """Read a sweep's status, even while it runs (`scalelab sweep --status`); `all_grids`: earlier grids' trials."""
    folder = pathlib.Path(workdir)
    if url := url_of(folder):
        folder = copy_here(url, report=lambda line: progress({"note": line}))
    return read_status(folder, all_grids)


def read_status(folder: pathlib.Path, all_grids: bool) -> SweepStatus:
    """How the sweep in a folder stands."""
    from scalelab.sweep.answer.rows import answer_folder

    started = status.read_started_runs(folder)
    rows = status.read_trial_rows(folder, started)
    return SweepStatus(folder, rows, answer_folder(folder, started, all_grids), sweep_jobs.describe_queue(folder))


@check_arguments(workdir=WORKDIR)
def cancel_sweep(workdir: Path) -> int:
    """End a sweep's jobs in Slurm, which save first (`scalelab sweep --cancel`); returns how many there were."""
    mirror.refuse_several_processes(pathlib.Path(workdir))
    return sweep_jobs.cancel(pathlib.Path(workdir))


@contextlib.contextmanager
def follow(workdir: Path) -> Iterator[Callable[[], LiveView]]:
    """Make a function that reads the present status of a sweep or run, wherever it trains (`--status --follow`)."""
    with _followed(workdir) as folder:
        yield lambda: read_live(folder)


@contextlib.contextmanager
def serve(workdir: Path, port: int = 0) -> "Iterator[LiveServer]":
    """Make a server of a sweep's or run's pages for a browser here (`--status --serve`): `url`, `serve_forever()`."""
    from scalelab.report.serve import LiveServer

    with _followed(workdir) as folder:
        read_live(folder)  # refuses a folder without runs before a port is taken
        with LiveServer(folder, port) as server:
            yield server


@contextlib.contextmanager
def _followed(workdir: Path) -> Iterator[pathlib.Path]:
    """A folder to read while others write it; for one in an object store, a copy that follows it."""
    folder = work_folder(os.fspath(workdir))
    url = url_of(folder)
    with kept_up_to_date(url) if url and not folder.exists() else contextlib.nullcontext(folder) as place:
        yield place


@check_arguments(sources=several(RUNS))
def answer(sources: Path | Sequence[Path], by: str | Sequence[str] = ()) -> "SweepAnswer":
    """Find the best setting over seeds (`scalelab runs --by`): means with errors, verdicts, the best learning rate.

    `sources`: a sweep's folder, or several; `by`: the config keys that make a setting, by default all that differ in
    the one folder. `scalelab.sweep.answer.wording.describe_answer` describes it in words. BadInput as the command.
    """
    from scalelab.sweep.answer import rows

    folders = [pathlib.Path(source).expanduser() for source in list_paths(sources)]
    keys = list(by)
    if not folders:
        raise BadInput("sources=[] names no folder: give a sweep's folder, or several")
    if not keys and len(folders) > 1:
        raise BadInput("several folders: name the keys that make a setting, e.g. by='optim.peak_lr'")
    return rows.answer_by(folders, keys) if keys else rows.answer_folder(folders[0])


class JudgedSweep(NamedTuple):
    """The best settings of a sweep: its answer, and the winner of each size and budget with its lead."""

    answer: "SweepAnswer"
    winners: "list[Winner]"


@check_arguments(sources=several(RUNS))
def judge_sweep(sources: Path | Sequence[Path], by: str | Sequence[str] = ()) -> JudgedSweep:
    """Judge which setting of finished runs won, by how much, over seeds (`scalelab tune SOURCE…`).

    `sources`, `by` and errors as `answer`; the runs may be another program's.
    """
    from scalelab.sweep.answer.settings import UNSCORED
    from scalelab.sweep.answer.winner import find_winners

    answered = answer(sources, by)
    settings = [ranked.setting for ranked in answered.settings]
    lost = [why for setting in settings for why in setting.lost.values()]
    if {*lost} == {UNSCORED} and not any(setting.losses or setting.pending for setting in settings):
        raise BadInput(
            f"none of {len(lost)} runs logged a validation loss, by which settings are ranked; of runs that another "
            "program trained --columns=val_loss=NAME takes another loss"
        )
    return JudgedSweep(answered, find_winners(answered))


@check_arguments(workdir=FOLDER)
def study_status(workdir: Path) -> list[Facts]:
    """Read a study's runs as rows (name, status, step, losses), also while they train (`--status`)."""
    return status.read_trial_rows(pathlib.Path(workdir))
