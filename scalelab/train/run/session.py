"""What one call of the trainer gives to the runs that it trains, beside their configs."""

import dataclasses
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from scalelab.data.dataset import Dataset
from scalelab.parallel.pulse import Pulse
from scalelab.train.run.early_stop import Judge
from scalelab.train.step.state import TrainState

Progress = Callable[[dict[str, Any]], None]


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
