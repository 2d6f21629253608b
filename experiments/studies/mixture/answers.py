"""From losses to answers: a mixing law of each domain, the best shares, and the prediction of a larger run.

Legend: V = K = 3 domains, P runs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from scalelab import laws
from scalelab.errors import WorkFailed
from scalelab.experiments.studies.mixture import runs
from scalelab.laws import FitError, Fitted
from scalelab.laws.law.axis_forms import mixture_of
from scalelab.laws.trust.uncertainty import predict_run
from scalelab.laws.use import mixture as mixture_lib
from scalelab.laws.use.mixture import BestShares

LEVEL = 0.9
RESAMPLES = 400
WEIGHTS = (1.0, 1.0, 1.0)  # each domain's validation loss counts alike
Z = stats.norm.ppf((1 + LEVEL) / 2)
Losses = Mapping[tuple[int, ...], np.ndarray]  # {fifteenths: losses [seeds, V]}


def fit_laws(losses: Losses) -> list[Fitted]:
    """A mixing law of each domain's loss over the mixtures of `losses`, a row a run. WorkFailed if not certain."""
    shares = [list(map(float, runs.of_parts(parts))) for parts, each in losses.items() for _ in each]
    columns = {f"r{i}": column for i, column in enumerate(np.array(shares).T, 1)}
    measured = np.concatenate(list(losses.values()))
    law = mixture_of(len(runs.DOMAINS))
    try:
        return [
            laws.fit(columns | {"loss": values}, law, bootstrap=RESAMPLES, identify=False, cluster="none")
            for values in measured.T
        ]
    except FitError as failure:
        raise WorkFailed(f"a mixing law could not be fitted: {failure}") from failure


def find_shares(fits: Sequence[Fitted]) -> BestShares:
    """The best shares of the mean loss over domains."""
    tried = np.array([list(map(float, runs.of_parts(parts))) for parts in runs.LATTICE])
    return mixture_lib.best_shares(fits, WEIGHTS, tried, LEVEL)


def score_held_out(fits: Sequence[Fitted], losses: Losses) -> list[dict[str, Any]]:
    """The mean loss of mixtures that no law has seen: predicted, measured, and that of the mean over the lattice."""
    whole, _ = mixture_lib.stack_laws(fits, WEIGHTS)
    rows = []
    for parts, each in losses.items():
        predicted = whole.loss(np.array(runs.of_parts(parts), float))
        rows.append({"parts": list(parts), "predicted": predicted, "measured": float(each.mean())})
    return rows


def fit_ladder(ladder: Mapping[runs.Shape, np.ndarray]) -> list[Fitted]:
    """The law E + A C^-alpha of each domain's loss on the even mixture. WorkFailed if one is not certain."""
    flops = np.array([runs.count_flops(shape) for shape, each in ladder.items() for _ in each])
    measured = np.concatenate(list(ladder.values()))
    try:
        return [
            laws.fit({"C": flops, "loss": values}, "saturating", bootstrap=RESAMPLES, identify=False, cluster="none")
            for values in measured.T
        ]
    except FitError as failure:
        raise WorkFailed(f"the ladder's law could not be fitted: {failure}") from failure


def predict_larger(fits: Sequence[Fitted], ladder: Sequence[Fitted], shares: Sequence[float]) -> dict[str, Any]:
    """The larger run's mean loss at `shares`, with an interval: the ladder's law on the even mixture, times how far the
    mixing laws put the loss at these shares from the even mixture's.

    The ladder's errors count as one for all domains, so that they add up and don't average out.
    """
    C = runs.count_flops(runs.LARGER)
    even, best = np.full(len(shares), 1 / len(shares)), np.asarray(shares, float)
    whole, draws = mixture_lib.stack_laws(fits, WEIGHTS)
    predicted = []
    for fit in ladder:
        assert fit.bootstrap is not None
        predicted.append(predict_run(fit.problem, fit.best, fit.bootstrap, {"C": C}, LEVEL))
    middle = np.array([each.loss for each in predicted])
    spread = np.array([math.log(each.high / each.low) / (2 * Z) for each in predicted])
    weights = whole.weights
    ratio = whole.losses(best) / whole.losses(even)
    rng = np.random.default_rng(0)
    sampled, gains = [], []
    for each in draws:
        ladder_loss = middle * np.exp(spread * rng.standard_normal())
        at_best = each.losses(best) / each.losses(even) * ladder_loss
        sampled.append(float(weights @ at_best))
        gains.append(float(weights @ (ladder_loss - at_best)))
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    return {
        "shares": [float(share) for share in shares], "C": C, "shape": list(runs.LARGER),
        "loss": float(weights @ (middle * ratio)), "interval90": [float(x) for x in np.quantile(sampled, ends)],
        "even": float(weights @ middle), "gain": float(weights @ (middle * (1 - ratio))),
        "gain90": [float(x) for x in np.quantile(gains, ends)],
    }  # fmt: skip
