"""What a pipeline loses: idle time at its ends, and stages that don't get the same number of layers."""

import dataclasses

from scalelab.config import Layout
from scalelab.parallel.ticks import predicted_bubble


@dataclasses.dataclass(frozen=True)
class Bubble:
    """`over_ideal` is idle time over busy time, Narayanan's convention; `of_total` the same over all time, GPipe's."""

    over_ideal: float
    of_total: float
    fullest_layers: int  # layers of the stage that has most
    imbalance: float  # its layers over the mean's, less one: what uneven stages add to the busy time


def pipeline_bubble(layout: Layout, n_layers: int) -> Bubble:
    """Of a pipeline of `layout.stage` stages; without one everything is zero.

    (p - 1) / (v m) of the ideal time (Narayanan et al. 2021, section 2.2) for p stages, m micro-batches and v rounds;
    GPipe and 1F1B have v = 1 and the same bubble. The trainer has no `zb_h1`, which fills it with gradients of weights.
    """
    stages, rounds = layout.stage, layout.rounds
    of_total = predicted_bubble(stages, layout.microbatches, rounds)
    fullest, _ = stage_layers(n_layers, stages, rounds)
    return Bubble(of_total / (1 - of_total), of_total, fullest, fullest * stages / n_layers - 1)


def lockstep_bubble(layout: Layout, ratio: float) -> float:
    """Idle over busy time if each tick is as long as its longest operation; a backward takes `ratio` forwards.

    `gpipe` and `circular` run all forwards, then all backwards, and lose nothing by it. Of `1f1b`'s 2 (m + p - 1) ticks
    the first p are forwards only, in all others some stage runs a backward.
    """
    stages, many = layout.stage, layout.microbatches
    if layout.schedule != "1f1b" or stages == 1:
        return pipeline_bubble(layout, stages).over_ideal
    took = stages + (2 * (many + stages - 1) - stages) * ratio
    return took / (many * (1 + ratio)) - 1


def stage_layers(n_layers: int, stages: int, rounds: int = 1) -> tuple[int, int]:
    """(layers of the fullest stage, of the last one): what doesn't divide is missing at both ends, as Llama 3 has it.

    Dubey et al. 2024, section 3.3.2: 126 layers over 16 stages are 8 each, and 7 on the first and the last, which hold
    embedding and head.
    """
    if stages == 1:  # `rounds` means nothing then
        return n_layers, n_layers
    fullest = rounds * -(-n_layers // (stages * rounds))
    missing = fullest * stages - n_layers
    return fullest, max(fullest - -(-missing // 2), 0)
