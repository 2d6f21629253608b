"""Judge the peak learning rate by loss and LR alone, of runs that log neither update nor weight norms.

A loss that was below that of a uniform guess and rises above it has diverged (stability.md 2.4). Where it rises while
the LR does, or comes back as the LR falls, the LR is what moved it. A loss that is not a number after ordinary ones, at
once, has another cause: it is `not_finite`.
"""

import numpy as np

from scalelab.diagnose.checks.settings.rates import ABOVE_LINES, LOSS_ABOVE_CEILING
from scalelab.diagnose.evidence import Evidence, Missing, Series, update_ratio
from scalelab.diagnose.verdict import Findings, Gap, Verdict, asks, make_verdict

LEAST_LINES = 8
LASTING_SHARE = 0.05  # share of the lines above a uniform guess; fewer are a spike, which `course/spikes.py` judges
EARLY = 0.02  # share of the steps within which the first logged loss stands for a uniform guess
NEAR_PEAK = 0.05  # share of the steps after the LR's peak in which a rise still belongs to its rise
BACK = 0.5  # share of the LR's peak: a loss that is back below it only then was held up by the LR


@asks("LR, by what the loss does")
def check_lr_by_loss(evidence: Evidence) -> Findings | None:
    """Judge an LR that throws the loss above a uniform guess; a Gap without an LR, None where norms are logged."""
    if len(update_ratio(evidence).steps):
        return None  # `rates.check_lr` judges by the updates themselves
    loss, lr = evidence.series("train_loss"), evidence.series("lr").finite()
    if len(loss.steps) < LEAST_LINES:
        return [Gap("lr_too_high", f"fewer than {LEAST_LINES} lines of training", "more logged steps")]
    ceiling, words = _ceiling(evidence, loss)
    if ceiling is None:
        return [
            Gap("lr_too_high", f"the loss of a uniform guess ({words})", "the vocabulary's size, or the first loss")
        ]
    below = np.flatnonzero(loss.values < ceiling)
    above = ~(loss.values < ceiling) & (np.arange(len(loss.steps)) > (below[0] if len(below) else len(loss.steps)))
    finite = above & np.isfinite(loss.values)
    lasts = above.sum() >= max(LEAST_LINES, LASTING_SHARE * len(above)) or above[-1]
    if lasts and finite.sum() >= ABOVE_LINES:
        return [_too_high(evidence, loss, lr, finite, words)]
    bad = np.flatnonzero(above & ~np.isfinite(loss.values))
    return [_not_finite(evidence, loss, int(bad[0]), len(bad))] if len(bad) >= ABOVE_LINES else []


def _ceiling(evidence: Evidence, loss: Series) -> tuple[float | None, str]:
    """(the loss above which a run has diverged, what it is made of); None where nothing tells."""
    try:
        return evidence.ceiling + LOSS_ABOVE_CEILING, f"a uniform guess has {evidence.ceiling:.3g}"
    except Missing:
        pass
    early = loss.steps[0] <= max(1, EARLY * evidence.steps)
    if not early or not np.isfinite(loss.values[0]):
        return None, "no vocabulary, and the first steps are not logged"
    return float(loss.values[0]) + LOSS_ABOVE_CEILING, f"it began at {loss.values[0]:.3g}"


def _too_high(evidence: Evidence, loss: Series, lr: Series, above: np.ndarray, words: str) -> Verdict:
    """Make the verdict on lines `above` the ceiling: a signature where the LR's course explains them."""
    places = np.flatnonzero(above).tolist()
    first, last = int(loss.steps[places[0]]), int(loss.steps[places[-1]])
    text = f"the loss reaches {np.nanmax(loss.values[above]):.4g} nats, where {words}, at {above.sum()} of "
    text += f"{len(loss.steps)} lines, first at step {first}"
    better, signs = None, list[str]()
    if len(lr.steps):
        highest = int(np.argmax(lr.values))
        peak, peak_step = float(lr.values[highest]), int(lr.steps[highest])
        at_first = float(np.interp(first, lr.steps, lr.values))
        better = min(at_first, peak) / 3
        rises = first <= peak_step + NEAR_PEAK * evidence.steps
        signs += [f"while the LR rises to {peak:.3g} ({at_first:.3g} there)"] if rises else []
        at_last = float(np.interp(last, lr.steps, lr.values))
        returns = last < loss.steps[-1] and np.isfinite(loss.values[-1]) and at_last <= BACK * peak and last > peak_step
        signs += [f"it is back below only where the LR has fallen to {at_last:.3g}"] if returns else []
    ended = ~np.isfinite(loss.values)
    signs += [f"it is no number from step {loss.steps[np.argmax(ended)]} on"] if ended[-1] else []
    text += "".join(f"; {sign}" for sign in signs)
    kind = "signature" if any("LR" in sign for sign in signs) else "symptom"
    knob = f"optim.peak_lr={better:.2g}" if better else "a lower peak LR"
    confirm = "train again with it, and compare the losses"
    return make_verdict("lr_too_high", kind, float(above.sum()), text, knob, confirm, (first, int(loss.steps[-1])))


def _not_finite(evidence: Evidence, loss: Series, place: int, count: int) -> Verdict:
    before = loss.values[max(0, place - LEAST_LINES) : place]
    before = before[np.isfinite(before)]
    text = f"the loss is no number at {count} lines, the first of step {loss.steps[place]}"
    text += f", at once after {before[-1]:.4g}" if len(before) else ""
    norms = evidence.series("grad_norm").finite().until(loss.steps[place])
    if len(norms.steps) > LEAST_LINES:
        share = norms.values[-1] / max(np.median(norms.values), 1e-30)
        text += f"; the gradient norm before it was {share:.3g} of its median"
    knob = "the loss's own term, the format, or the data of that step"
    confirm = f"look at the batch of step {loss.steps[place]}, and train it again in fp32"
    return make_verdict("not_finite", "symptom", float(count), text, knob, confirm, (int(loss.steps[place]),) * 2)


CHECKS = (check_lr_by_loss,)
