"""How an answer is compared with the truth: numbers with a tolerance, and the mistakes that have names."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def judge(answer: Any, truth: Any, tolerance: float, mistakes: Mapping[str, Any]) -> None:
    """AssertionError unless all numbers of `answer` are within a relative `tolerance` of `truth`.

    `mistakes`: {what to say: the numbers that somebody who made that mistake gets}.
    """
    numbers, right = numbers_of(answer, np.asarray(truth, float).shape), np.asarray(truth, float)
    if _are_near(numbers, right, tolerance):
        return
    for hint, wrong in mistakes.items():
        assert not _are_near(numbers, np.asarray(wrong, float), tolerance), hint
    far = np.unravel_index(np.argmax(np.abs(numbers - right) / np.maximum(np.abs(right), 1e-30)), right.shape)
    where = f" (number {'.'.join(str(i + 1) for i in far)} of the answer)" if right.size > 1 else ""
    raise AssertionError(f"{numbers[far]:.4g} is too {'large' if numbers[far] > right[far] else 'small'}{where}")


def numbers_of(answer: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The answer as finite numbers of this shape; AssertionError if it is not."""
    try:
        numbers = np.asarray(answer, float)
    except (TypeError, ValueError):
        raise AssertionError(f"{str(answer)[:40]!r} is not made of numbers") from None
    assert numbers.shape == shape, f"an answer of shape {shape or 'one number'} is asked for, not {numbers.shape}"
    assert np.isfinite(numbers).all(), "not all numbers are finite"
    return numbers


def _are_near(numbers: np.ndarray, others: np.ndarray, tolerance: float) -> bool:
    return bool(np.all(np.abs(numbers - others) <= tolerance * np.abs(others) + 1e-12))


def entries_of(answer: Any, names: tuple[str, ...]) -> list[Any]:
    """The values of an answer that is a dict with these keys; AssertionError if it is not."""
    assert isinstance(answer, Mapping) and set(answer) == set(names), (
        f"a dict with the keys {', '.join(names)} is asked for"
    )
    return [answer[name] for name in names]


def call_answer(answer: Any, *values: Any, **options: Any) -> Any:
    """What the answer, a function, returns; AssertionError if it is not a function, or raises."""
    assert callable(answer), f"a function is asked for, not {str(answer)[:40]!r}"
    try:
        return answer(*values, **options)
    except Exception as trouble:
        raise AssertionError(f"the function raised {type(trouble).__name__}: {trouble}") from None
