"""What a pipeline loses: idle time at its ends, and stages that don't get the same number of layers."""

import dataclasses

from scalelab.config import Layout
from scalelab.parallel.stages.assignment import assign_layers
from scalelab.parallel.stages.ticks import predicted_bubble


@dataclasses.dataclass(frozen=True)
class Bubble:
    """`over_ideal` is idle time over busy time, Narayanan's convention; `of_total` the same over all time, GPipe's."""

    over_ideal: float
    of_total: float
    fullest_layers: int  # layers of the stage that has most
    imbalance: float  # its layers over the mean's, less one: what uneven stages add to the busy time


def pipeline_bubble(layout: Layout, n_layers: int) -> Bubble:
    """The bubble of a pipeline of `layout.stage` stages; with one stage everything is zero.

    (p - 1) / (v m) of the ideal time (Narayanan et al. 2021, section 2.2) for p stages, m micro-batches and v rounds;
    GPipe and 1F1B have the same bubble. The trainer has no ZB-H1, which fills it with gradients of weights.
    """
    stages, rounds = layout.stage, layout.rounds
    of_total = predicted_bubble(stages, layout.microbatches, rounds)
    fullest, _ = stage_layers(n_layers, stages, rounds)
    return Bubble(of_total / (1 - of_total), of_total, fullest, fullest * stages / n_layers - 1)


def stage_layers(n_layers: int, stages: int, rounds: int = 1) -> tuple[int, int]:
    """(slots of a stage, layers of the last one): stages wait for each other, so an empty slot is idle time.

    Both ends get fewer layers if they don't divide, as in Llama 3: 126 over 16 stages are 8 each, and 7 on the first
    and the last, which hold embedding and head (Dubey et al. 2024, section 3.3.2).
    """
    if stages == 1:  # `rounds` means nothing then
        return n_layers, n_layers
    slots = assign_layers((n_layers,), stages, rounds)
    return rounds * slots.depth, int(slots.layers_by_stage[-1])
