"""A question of `make gpu`: one row of its results, with what it costs to get."""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from checks.gpu.settings import Settings


class OutOfTime(Exception):
    """Raised by an answer that was stopped in order: its next call goes on where it was."""


@dataclasses.dataclass(frozen=True)
class Context:
    """What an answer may use: sizes, a folder of its part's own, the part's earlier rows, and when the call ends."""

    settings: Settings
    folder: pathlib.Path
    rows: Mapping[str, Any]
    ends_at: float  # seconds since the epoch

    @property
    def seconds_left(self) -> float:
        return self.ends_at - time.time()


class Question(NamedTuple):
    """`cost_s`: seconds on one H100, compilation included; a question is not asked if less time is left."""

    row: str
    cost_s: float
    answer: Callable[[Context], dict[str, Any]]
