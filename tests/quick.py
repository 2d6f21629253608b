"""Which values of a parametrized test `make test` takes; `make test-all` takes the others too, but for slow ones."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

ELSEWHERE = {"full", "slow", "crash", "slurm"}  # marks that `make test` leaves out


def one_in(n: int, values: Iterable[Any]) -> list[Any]:
    """Every n-th value as it is, from the first, and the others marked `full`; those with such a mark don't count."""
    marked, place = [], 0
    for value in values:
        case = value if isinstance(value, ParameterSet) else None
        if case and any(mark.name in ELSEWHERE for mark in map(_mark_of, case.marks)):
            marked.append(value)
            continue
        if place % n:
            arguments, marks, name = (case.values, case.marks, case.id) if case else (_arguments(value), (), None)
            value = pytest.param(*arguments, marks=[*marks, pytest.mark.full], id=name)
        marked.append(value)
        place += 1
    return marked


def others_slow(stays: Callable[..., bool], values: Iterable[Any]) -> list[Any]:
    """Every value: as it is if `stays(*arguments)`, else marked `slow`, for `make test-slow` alone.

    For families of which some members reach every line and every value of each argument; whether these notice what the
    others do is asked by checks/speed/moved_tests.py.
    """
    return [
        value if stays(*_arguments(value)) else pytest.param(*_arguments(value), marks=pytest.mark.slow)
        for value in values
    ]


def _arguments(value: Any) -> tuple[Any, ...]:
    return value if type(value) is tuple else (value,)  # a tuple holds several arguments; a NamedTuple is one


def _mark_of(mark: Any) -> Any:
    return getattr(mark, "mark", mark)
