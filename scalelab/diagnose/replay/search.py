"""Find the batches of a window that bring a spike, by bisection: halves of the window are left out in turn."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

Works = Callable[[Sequence[frozenset[int]]], list[bool]]  # sets of left-out batches -> whether each cures


class Culprits(NamedTuple):
    """The smallest set of batches whose absence cures; () if leaving out all does not. `rounds`: of bisection."""

    steps: tuple[int, ...]
    rounds: int


def find_culprits(steps: Sequence[int], works: Works) -> Culprits:
    """Bisect the batches of `steps` (as logged, in order): call `works` on both halves of the remaining set. If neither
    half alone cures, both hold a culprit, and the search ends with the present set.
    """
    rounds, left = 1, list(steps)
    if not works([frozenset(left)])[0]:
        return Culprits((), rounds)
    while len(left) > 1:
        halves = [left[: len(left) // 2], left[len(left) // 2 :]]
        rounds += 1
        cures = works([frozenset(half) for half in halves])
        if not any(cures):
            break
        left = halves[cures.index(True)]
    return Culprits(tuple(left), rounds)
