"""Estimate how likely a run ends worse than the best of its rivals: runs of its folder of equal compute."""

import math
from collections.abc import Mapping, Sequence

from scalelab.diagnose.watch.curve import Curve
from scalelab.diagnose.watch.family import Estimate
from scalelab.diagnose.watch.forecast import Forecast

SAME_FLOPS = 0.1  # relative difference of compute up to which a run is a rival: with more it must be better


def find_rivals(run: Curve, others: Sequence[Curve]) -> list[Curve]:
    """The other runs on the same data whose whole training costs as many FLOPs, done or running."""
    return [
        other
        for other in others
        if other.folder != run.folder
        and other.family == run.family
        and run.flops > 0
        and abs(other.flops / run.flops - 1) <= SAME_FLOPS
    ]


def p_worse_than_best(forecast: Forecast, rivals: Sequence[Curve], forecasts: Mapping[str, Forecast]) -> float | None:
    """Probability that a rival ends lower; None without a rival whose end is known or forecast (`forecasts`, by name).

    It is the chance of the single likeliest rival, a lower bound for the best of all. Two running rivals are
    compared by their training losses, without the gap to validation, which they share.
    """
    chances = [forecast.val.chance_above(math.log(r.val_loss)) for r in rivals if r.val_loss is not None]
    for rival in rivals:
        other = forecasts.get(rival.name) if rival.val_loss is None and rival.status == "running" else None
        if other is not None:
            pair = (forecast.train, other.train) if forecast.train and other.train else (forecast.val, other.val)
            chances.append(_chance_first_is_higher(*pair))
    return max(chances, default=None)


def _chance_first_is_higher(first: Estimate, second: Estimate) -> float:
    """Chance that the first of two independent estimates is higher, by the fewer (wider) degrees of freedom."""
    freedom = min(first.freedom, second.freedom)
    return Estimate(first.mean, math.hypot(first.sd, second.sd), freedom).chance_above(second.mean)
