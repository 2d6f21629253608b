"""Which batches of a window bring a spike: halves of the window are left out, again and again (bisection)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

Works = Callable[[Sequence[frozenset[int]]], list[bool]]  # batches left out, several at once -> whether each cures


class Culprits(NamedTuple):
    """The smallest set of batches found whose absence cures; () if not even all of the window's do. `rounds`: taken."""

    steps: tuple[int, ...]
    rounds: int


def find_culprits(steps: Sequence[int], works: Works) -> Culprits:
    """Bisect the batches of `steps` (as logged, in order): ask `works` for both halves of what is left at a time.

    If neither half by itself cures, both hold a culprit, and the search ends with the set at hand.
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
