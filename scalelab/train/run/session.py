"""What one call of the trainer gives to the runs that it trains, beside their configs."""

import dataclasses
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

from ml_collections import ConfigDict

from scalelab.data.dataset import Dataset
from scalelab.errors import BadInput
from scalelab.parallel.pulse import Pulse
from scalelab.train.run.early_stop import Judge
from scalelab.train.step.state import TrainState

Progress = Callable[[dict[str, Any]], None]
TASK_PREFIX = "task/"  # before the names of the tasks of `eval.tasks` in the log


class Scorer(NamedTuple):
    """What scores `eval.tasks`: a line about it, and a function of a run's config and state to {column: number}.

    The function calls its third argument after each batch of work.
    """

    text: str
    score: Callable[[ConfigDict, TrainState, Callable[[], None]], Mapping[str, float]]


OpenScorer = Callable[[ConfigDict, Dataset], Scorer | None]  # None: `eval.tasks` is empty


def refuse_tasks(config: ConfigDict, _: Dataset) -> None:
    """Raise BadInput for `eval.tasks` where nobody gave a scorer: this room is below the one that has it."""
    if config.eval.tasks:
        raise BadInput("eval.tasks: nothing here scores tasks; train with `scalelab train` or scalelab.api.train")


class Saver(Protocol):
    """`Checkpoints`, or what stands for them where nothing is to be saved."""

    folder: pathlib.Path

    def save(
        self,
        step: int,
        states: Mapping[str, TrainState],
        last: bool = False,
        ledgers: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Save the states of all runs by name."""

    def close(self) -> None:
        """Wait until what was saved is on disk."""


@dataclasses.dataclass(frozen=True)
class Session:
    """One training call: the data, how runs share the devices, and who listens, stops, watches and judges.

    Checkpoints are not part of it: they are opened anew where a run goes back.
    """

    dataset: Dataset
    progress: Progress = lambda _: None
    stop: Callable[[], bool] = lambda: False  # asked after each dispatch; True ends the runs after a save
    allow: Collection[str] = ()  # config keys of --allow-change
    mode: str = "turn"  # of `program.PACKINGS`
    pulse: Pulse | None = None  # ends the process where no step ends; None: the loop makes its own
    judge: Judge | None = None  # may end trials early
    scorer: Scorer | None = None  # of eval.tasks
