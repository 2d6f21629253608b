"""How a command of many steps trains its runs: in one pool of processes, with progress, until a signal stops it."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from scalelab.cli.parser import align_columns, print_status
from scalelab.cli.progress import PoolProgress
from scalelab.hardware import device_memory
from scalelab.signals import stop_on_signals
from scalelab.sweep import status
from scalelab.sweep.executors import choice
from scalelab.sweep.live import LiveTrial
from scalelab.sweep.run import run_sweep
from scalelab.train.single import load_run_dataset
from scalelab.train.step.program import cache_compilations

Train = Callable[[Mapping[str, ConfigDict]], bool]


@contextlib.contextmanager
def train_in_pool(folder: pathlib.Path, first: ConfigDict, take_over: bool) -> Iterator[Train]:
    """A function that trains all runs given to it in `folder`; it returns False where they have not all ended.

    That is after a signal, or where they train elsewhere (--executor=manifest). `first`: any of the runs; its data
    are prepared before the pool starts. WorkFailed if a run crashed.
    """
    device_memory.reserve_gpu_memory()
    cache_compilations()
    load_run_dataset(first)
    with stop_on_signals() as stop, choice.open_executor(folder, [first], (), take_over, report=print_status) as pool:

        def train(trials: Mapping[str, ConfigDict]) -> bool:
            with PoolProgress(folder, {name: trial.train.steps for name, trial in trials.items()}) as board:
                verdicts = run_sweep(
                    folder, trials, board.report, board.update, stop, take_over=take_over, workers=pool
                )
            if not stop():
                status.refuse_crashed(folder, verdicts)
            return not stop() and status.exit_code(verdicts.values()) != 75

        yield train


def describe_trials(folder: pathlib.Path) -> tuple[list[str], list[dict[str, Any]]]:
    """A table of the runs in `folder` as lines, and its rows; also while they run."""
    rows = status.read_trial_rows(folder)
    texts = [row | {"status": LiveTrial(row).status_text} for row in rows]
    columns = ("name", "status", "step", "steps", "val_loss")
    cells = [["-" if row.get(key) is None else str(row[key]) for key in columns] for row in texts]
    return [*align_columns([columns, *cells]), status.describe_verdicts([row["status"] for row in rows])], rows
