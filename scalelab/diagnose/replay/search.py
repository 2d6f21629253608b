"""Find the batches of a window that bring a spike, by bisection from both of its ends."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

Works = Callable[[Sequence[frozenset[int]]], list[bool]]  # sets of left-out batches -> whether no peak remains


class Culprits(NamedTuple):
    """The shortest stretch of batches whose absence leaves no peak; () if leaving out all of them does not.

    `rounds`: of bisection.
    """

    steps: tuple[int, ...]
    rounds: int


def find_culprits(steps: Sequence[int], works: Works) -> Culprits:
    """Bisect the batches of `steps` (as logged, in order) for the last start and the first end of a stretch that must
    be left out whole. Both are searched at once: `works` is called on two sets a round, and on all of `steps` first.
    """
    rounds, steps = 1, list(steps)
    if not works([frozenset(steps)])[0]:
        return Culprits((), rounds)
    # Leaving out steps[start:] works for start = low, and not for high; steps[:end] likewise from the other side.
    start, end = [0, len(steps)], [0, len(steps)]
    while start[1] - start[0] > 1 or end[1] - end[0] > 1:
        middle = [sum(start) // 2, (sum(end) + 1) // 2]
        rounds += 1
        tail, head = works([frozenset(steps[middle[0] :]), frozenset(steps[: middle[1]])])
        start[0 if tail else 1], end[1 if head else 0] = middle
    return Culprits(tuple(steps[start[0] : end[1]]), rounds)
