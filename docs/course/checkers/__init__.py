"""Checkers of the problems in exercises.md: each computes the truth with the library and names likely mistakes.

`check(n, answer)` returns "problem n: right", or raises AssertionError with one line that says what is off.
"""

from collections.abc import Callable
from typing import Any

from . import batches, planning, training
from .planning import LOSSES, isoflop_runs

__all__ = ["LOSSES", "PROBLEMS", "check", "isoflop_runs"]

PROBLEMS: dict[int, Callable[[Any], None]] = {
    1: training.check_adamw,
    2: training.check_forgotten,
    3: training.check_cosine,
    4: planning.check_memory,
    5: planning.check_days,
    6: training.check_loss_scale,
    7: planning.check_allocation,
    8: planning.check_isoflop,
    9: planning.check_save_interval,
    10: planning.check_difference,
    11: training.check_clip,
    12: batches.check_whole_batch,
    13: batches.check_masks,
}


def check(problem: int, answer: Any) -> str:
    """Say that the answer is right, or that there is none yet (`...`); AssertionError with one line if it is wrong."""
    if answer is ...:
        return f"problem {problem}: not answered yet"
    try:
        PROBLEMS[problem](answer)
    except AssertionError as wrong:
        raise AssertionError(f"problem {problem}: {wrong}") from None
    return f"problem {problem}: right"
