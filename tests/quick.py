"""Which values of a parametrized test `make test` takes; `make test-all` takes the others too, but for slow ones."""

import itertools
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
    """Every value: as it is if `stays(*arguments)`, else marked `slow` too, for `make test-slow` alone.

    For families of which some members reach every line and every value of each argument; whether these notice what the
    others do is asked by checks/speed/moved_tests.py. Around `one_in`, which then takes the same values as before.
    """
    return [value if stays(*_case(value).values) else _with_mark(_case(value), pytest.mark.slow) for value in values]


def cross(*families: Iterable[Any]) -> list[ParameterSet]:
    """Every combination of the values of several arguments, with the marks of each, named as jointly parametrized."""
    crossed = []
    for values in itertools.product(*families):
        cases = [_case(value) for value in values]
        named = any(case.id for case in cases)
        name = "-".join(case.id or "-".join(map(str, case.values)) for case in cases) if named else None
        arguments = [argument for case in cases for argument in case.values]
        crossed.append(pytest.param(*arguments, marks=[mark for case in cases for mark in case.marks], id=name))
    return crossed


def _case(value: Any) -> ParameterSet:
    return value if isinstance(value, ParameterSet) else pytest.param(*_arguments(value))


def _with_mark(case: ParameterSet, mark: Any) -> ParameterSet:
    return pytest.param(*case.values, marks=[*case.marks, mark], id=case.id)


def _arguments(value: Any) -> tuple[Any, ...]:
    return value if type(value) is tuple else (value,)  # a tuple holds several arguments; a NamedTuple is one


def _mark_of(mark: Any) -> Any:
    return getattr(mark, "mark", mark)
