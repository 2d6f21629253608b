"""Rounds of points, each round's space made from what the earlier ones found. It knows nothing of training."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from scalelab.errors import BadInput
from scalelab.laws.use.settings.optima import count_terms
from scalelab.sweep.tune.optimum import Tried, locate_best
from scalelab.sweep.tune.space import Point, Space, draw_points, lower_space, next_space

LEAST_POINTS = 4  # of a round
SEARCH_SEED = 0  # of the points


@dataclasses.dataclass
class Arm:
    """The search of one arm: the space of every round so far, notes on how it moved, and all that was tried."""

    spaces: list[Space]
    notes: list[str] = dataclasses.field(default_factory=list)
    tried: list[Tried] = dataclasses.field(default_factory=list)

    def ranked(self) -> list[Tried]:
        """The feasible trials, best first."""
        return sorted((each for each in self.tried if each.feasible), key=lambda each: (each.loss, each.point))

    def move_on(self) -> None:
        """Choose the space of the next round."""
        best, space = self.ranked(), self.spaces[-1]
        if best:
            beyond = locate_best(space, self.tried).beyond
            space, notes = next_space(space, best[0].point, [each.point for each in self.tried], beyond)
        else:
            space, notes = lower_space(space)
        self.spaces.append(space)
        self.notes += [f"round {len(self.spaces)}: {note}" for note in notes]


Evaluate = Callable[[int, Mapping[str, Sequence[Point]]], Mapping[str, Sequence[float]]]


def search(
    arms: Sequence[str],
    space: Space,
    rounds: Sequence[int],
    seed: int,
    evaluate: Evaluate,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Arm]:
    """Search every arm for `rounds` [points of each round].

    `evaluate(round, {arm: points})` returns {arm: losses}, inf for an infeasible trial. All arms of the first round get
    the same points. BadInput for a round of too few points.
    """
    if min(rounds) < (least := least_points(space, len(rounds))):
        raise BadInput(f"{min(rounds)} points a round are too few for {len(space)} keys: {least} or more")
    found = {name: Arm([space]) for name in arms}
    for i, count in enumerate(rounds):
        if i:
            for name, arm in found.items():
                known = len(arm.notes)
                arm.move_on()
                for text in arm.notes[known:]:
                    note(f"{name}, {text}" if len(found) > 1 else text)
        points = {name: draw_points(arm.spaces[-1], count, seed + i) for name, arm in found.items()}
        losses = evaluate(i, points)
        for name, arm in found.items():
            pairs = zip(points[name], losses[name], strict=True)
            arm.tried += [Tried(i, point, float(loss)) for point, loss in pairs]
    return found


def least_points(space: Space, rounds: int) -> int:
    """The fewest points of a round in a space of so many dimensions, so that all rounds together make a surface."""
    return max(LEAST_POINTS, 2 * len(space), -(-surface_points(space) // rounds))


def surface_points(space: Space) -> int:
    """The fewest trials that must end for a surface through them: its terms, and one that tells the noise."""
    return count_terms(len(space)) + 1
