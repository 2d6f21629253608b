"""Judge the course of losses alone, mostly of runs that others trained, whose program, data and state can't be asked.

Each is a symptom: the lines say what happened, and several causes may have done it.
"""

import math

import numpy as np

from scalelab.diagnose.evidence import Evidence, KnownValues, Missing, Series
from scalelab.diagnose.verdict import Findings, Gap, Verdict, asks, make_verdict

LEAST_LINES = 40
LEAST_EVALUATIONS = 5
STUCK_SHARE = 0.62  # of ln V: frequencies of tokens alone give .6 to .8 of it, models of texts come below a half
STUCK_FALL = 0.004  # of the loss: a run that learns falls by more in its second half
STILL_NORM = 1e-5  # a gradient norm below which nothing moves
OVERFIT = 0.03  # of the loss: what a validation loss rises while the training loss falls as much
GAP_GROWS = 0.1  # of the loss: what a training loss falls while the validation loss stays
STAYS = 0.25  # of the fall of the training loss: a validation loss that falls by less stays
TOO_GOOD, LARGE_VOCABULARY = 0.05, 1000  # nats of validation loss, where a text has that many tokens
RESTART = 0.2  # of the LR's peak: a rise from one line to the next that is no warm-up
ENOUGH_STEPS, ENOUGH_TOKENS = 100, 200  # after which shares of tokens are learnt; the second by kinds of tokens
ABOVE_ENTROPY = 0.1  # nats
GAP_NATS, GAP_SHARE = 1.0, 0.4  # a validation loss that far above the training loss; the second of the training loss
PERIODS = 4  # of a pattern that returns
PERIODIC_SHARE = 0.4  # of the variance of the loss about its course


def _of_others(evidence: Evidence) -> bool:
    return isinstance(evidence.values, KnownValues)


@asks("whether the loss falls")
def check_learning(evidence: Evidence) -> Findings | None:
    """Judge a loss that stands still, at the level that frequencies of tokens give, or at one value."""
    if not _of_others(evidence):
        return None
    loss = evidence.series("train_loss").finite()
    if len(loss.steps) < LEAST_LINES:
        return [Gap("not_learning", f"fewer than {LEAST_LINES} lines of training", "more logged steps")]
    last = (int(loss.steps[len(loss.steps) // 2]), int(loss.steps[-1]))
    if np.ptp(loss.values) == 0:
        return [_not_learning(evidence, f"the loss is {loss.values[0]:.6g} at all {len(loss.steps)} lines", last, 9.0)]
    try:
        guess = evidence.ceiling
    except Missing:
        return [Gap("not_learning", "the loss of a uniform guess", "the vocabulary's size")]
    fall, error, level = _fall(loss)
    was_lower = float(np.median(loss.values[: len(loss.values) // 2])) < level * (1 - OVERFIT)
    if level < STUCK_SHARE * guess or fall > max(STUCK_FALL * level, 2 * error) or was_lower:
        return []
    text = f"the loss stands at {level:.4g} from step {last[0]} on (it falls by {fall:.2g} ± {2 * error:.2g})"
    text += f", where a uniform guess has {guess:.4g}"
    return [_not_learning(evidence, text, last, level / (STUCK_SHARE * guess))]


def _fall(loss: Series) -> tuple[float, float, float]:
    """(fall of the loss from the third quarter to the last, its standard error, the level of the last)."""
    third, fourth = np.array_split(loss.values, 4)[2:]
    scale = np.std(np.diff(loss.values[len(loss.values) // 2 :])) / math.sqrt(2)
    error = scale * math.sqrt(1 / len(third) + 1 / len(fourth))
    return float(third.mean() - fourth.mean()), float(error), float(fourth.mean())


def _not_learning(evidence: Evidence, text: str, where: tuple[int, int], over: float) -> Verdict:
    norms, lr = (evidence.series(name).finite().values for name in ("grad_norm", "lr"))
    if len(lr) and lr.max() <= 0:
        return make_verdict("lr_too_low", "test", 9.0, f"{text}; the logged LR is 0", "the LR's schedule", "", where)
    knob = "own code: targets, the loss, what the optimizer is given; else the LR, three times as high and as low"
    if len(norms):
        text += f"; the gradient norm is {np.median(norms[len(norms) // 2 :]):.2g}"
        if np.median(norms) < STILL_NORM:
            knob = "own code: no gradient comes to the weights (frozen, detached, a dead start)"
    confirm = "train on one batch alone: its loss must fall to nearly 0"
    return make_verdict("not_learning", "symptom", over, text, knob, confirm, where)


@asks("the validation loss beside the training loss")
def check_overfitting(evidence: Evidence) -> Findings | None:
    """Judge a validation loss that rises, or stays, while the training loss falls on."""
    if not _of_others(evidence):
        return None
    scored = [(int(row["step"]), float(row["val_loss"])) for row in evidence.evaluations]
    held_out = Series(np.array([step for step, _ in scored], int), np.array([loss for _, loss in scored])).finite()
    loss = evidence.series("train_loss").finite()
    if len(held_out.steps) < LEAST_EVALUATIONS or len(loss.steps) < LEAST_LINES:
        how = f"{LEAST_EVALUATIONS} evaluations and {LEAST_LINES} lines of training"
        return [Gap("repeated_data", f"fewer than {how}", "more evaluations")]
    at = np.convolve(loss.values, np.ones(5) / 5, "valid")
    train = np.interp(held_out.steps, loss.steps[2:-2], at)
    best = min(int(np.argmin(held_out.values)), len(held_out.steps) - 2)
    rise, fell = _changes(held_out.values, train, best)
    level, noise = float(held_out.values[best]), float(np.std(np.diff(held_out.values[best:])))
    where = (int(held_out.steps[best]), int(held_out.steps[-1]))
    if rise > max(OVERFIT * level, noise) and fell > OVERFIT * level:
        words = f"rises from {level:.4g} at step {where[0]} to {held_out.values[-1]:.4g}"
        return [_repeated(words, fell, rise / (OVERFIT * level), where)]
    half = len(held_out.steps) // 2
    rise, fell = _changes(held_out.values, train, half)
    if fell > GAP_GROWS * level and -rise < STAYS * fell:
        where = (int(held_out.steps[half]), where[1])
        words = f"stays near {held_out.values[-1]:.4g} from step {where[0]} on"
        return [_repeated(words, fell, fell / (GAP_GROWS * level), where)]
    return []


def _changes(held_out: np.ndarray, train: np.ndarray, since: int) -> tuple[float, float]:
    """(what the validation loss has risen since an evaluation, what the training loss has fallen)."""
    return float(np.mean(held_out[-2:]) - held_out[since]), float(train[since] - np.mean(train[-2:]))


def _repeated(words: str, fell: float, over: float, where: tuple[int, int]) -> Verdict:
    text = f"the validation loss {words}, while the training loss falls by {fell:.3g} more"
    knob = f"stop at step {where[0]}, or more data, fewer epochs, more weight decay or dropout"
    return make_verdict("repeated_data", "symptom", over, text, knob, "count how often each document was read", where)


@asks("a validation loss that a text can have")
def check_sure_predictions(evidence: Evidence) -> Findings | None:
    """Judge a validation loss near 0 with many tokens to choose from: the targets are visible, or trained on."""
    if not _of_others(evidence) or not evidence.evaluations:
        return None
    size = evidence.values.get("model.vocab_size")
    if size is None or size < LARGE_VOCABULARY:
        return None
    lowest = min(evidence.evaluations, key=lambda row: float(row["val_loss"]))
    loss = float(lowest["val_loss"])
    if not loss < TOO_GOOD:
        return []
    text = (
        f"the validation loss is {loss:.3g} nats at step {lowest['step']}: of {size:,} tokens the next one is certain"
    )
    knob = "own code: a mask that shows the next token, targets that are not shifted; else documents trained on"
    confirm = "change a late token of a text: no earlier loss may change"
    return [make_verdict("mask_leak", "symptom", TOO_GOOD / max(loss, 1e-3), text, knob, confirm)]


@asks("a pattern of the loss that returns")
def check_periodic(evidence: Evidence) -> Findings | None:
    """Judge a loss that goes up and down with one period: data that come in an order, not shuffled."""
    if not _of_others(evidence):
        return None
    loss, lr = evidence.series("train_loss").finite(), evidence.series("lr").finite()
    start = len(loss.values) // 4
    kept = loss.values[start:]
    if len(kept) < 4 * LEAST_LINES:
        return [Gap("not_shuffled", f"fewer than {4 * LEAST_LINES} lines after the first quarter", "more logged steps")]
    if len(lr.values) and (np.diff(lr.values) > RESTART * lr.values.max()).sum() > 1:
        return None  # the LR restarts, and the loss goes with it
    if len(set(np.diff(loss.steps[start:]))) > 1:
        return None  # not evenly spaced
    places = np.linspace(-1, 1, len(kept))
    about = kept - np.polynomial.Polynomial.fit(places, kept, 5)(places)
    power = np.abs(np.fft.rfft(about * np.hanning(len(kept)))) ** 2
    whole = float(power.sum())
    power[: PERIODS + 2] = 0  # what the course itself leaves
    peak = int(np.argmax(power))
    share = float(power[peak - 1 : peak + 2].sum()) / max(whole, 1e-30)
    if share < PERIODIC_SHARE:
        return []
    period = len(kept) / peak * float(loss.steps[start + 1] - loss.steps[start])
    text = (
        f"the loss goes up and down every {period:.0f} steps, which makes {share:.0%} of its variance about its course"
    )
    knob = "the shuffle of the data: sources or lengths come in blocks"
    confirm = "train again with another seed of the shuffle: the pattern moves, or goes"
    return [make_verdict("not_shuffled", "symptom", share / PERIODIC_SHARE, text, knob, confirm)]


@asks("the loss beside the logged LR")
def check_rate_is_used(evidence: Evidence) -> Findings | None:
    """Judge an LR that is logged as 0 while the loss falls: the log is not of what was trained."""
    loss, lr = evidence.series("train_loss").finite(), evidence.series("lr").finite()
    if not _of_others(evidence) or len(lr.values) < LEAST_LINES or len(loss.values) < LEAST_LINES:
        return None
    fell = float(np.median(loss.values[:5]) - np.median(loss.values[-5:]))
    if lr.values.max() > 0 or fell < OVERFIT * float(np.median(loss.values[-5:])):
        return []
    text = f"the LR is logged as 0 at all {len(lr.values)} lines, and the loss falls by {fell:.3g}"
    return [make_verdict("log_wrong", "test", 9.0, text, "what is logged as the LR", "read the optimizer's own LR")]


@asks("the loss beside how often each token occurs")
def check_frequencies(evidence: Evidence) -> Findings | None:
    """Judge a loss above the entropy of single tokens of its data, after enough steps to count them."""
    loss, data = evidence.series("train_loss").finite(), evidence.data
    if data is None or len(loss.steps) < LEAST_EVALUATIONS or loss.steps[-1] < ENOUGH_STEPS:
        return None
    counts = np.unique(data.windows[data.windows >= 0], return_counts=True)[1]
    tokens = evidence.series("tokens").finite().values
    if not len(counts) or not len(tokens) or tokens[-1] < ENOUGH_TOKENS * len(counts):
        return None
    shares = counts / counts.sum()
    entropy = float(-(shares * np.log(shares)).sum() + (len(counts) - 1) / (2 * counts.sum()))  # Miller 1955
    level = float(np.median(loss.values[-max(3, len(loss.values) // 4) :]))
    if level <= entropy + ABOVE_ENTROPY:
        return []
    text = f"the loss is {level:.4g} at the end, where the shares of its {len(counts)} tokens alone give {entropy:.4g}"
    fall, error, _ = _fall(loss)
    if fall > max(OVERFIT * level, 2 * error):
        return [Gap("not_learning", f"{text}: it still falls, by {fall:.2g} in the last quarter", "more steps")]
    where = (int(loss.steps[-1]), int(loss.steps[-1]))
    return [_not_learning(evidence, text, where, level / (entropy + ABOVE_ENTROPY))]


@asks("the level of the validation loss")
def check_held_out_level(evidence: Evidence) -> Findings | None:
    """Judge a validation loss that is far above the training loss where it is best, of data that can't be compared."""
    scored = [row for row in evidence.evaluations if np.isfinite(row["val_loss"])]
    loss = evidence.series("train_loss").finite()
    if evidence.data is not None or not scored or len(loss.steps) < LEAST_EVALUATIONS:
        return None  # with data `documents` compares the two
    if evidence.values.get("train.ema"):
        return None  # an average that is longer than the run lags far behind
    best = min(scored, key=lambda row: float(row["val_loss"]))
    near = np.argsort(np.abs(loss.steps - best["step"]))[:LEAST_EVALUATIONS]
    train, held_out = float(np.median(loss.values[near])), float(best["val_loss"])
    most = max(GAP_NATS, GAP_SHARE * train)
    if held_out - train <= most:
        return []
    text = f"the validation loss is {held_out:.4g} at best, at step {best['step']}, and the training loss {train:.4g}"
    knob = "how documents are held out: at random from the same texts; else fewer epochs, or the average of weights"
    confirm = "read some documents of both"
    return [make_verdict("val_of_another_kind", "symptom", (held_out - train) / most, text, knob, confirm)]


CHECKS = (
    check_learning,
    check_frequencies,
    check_held_out_level,
    check_overfitting,
    check_sure_predictions,
    check_periodic,
    check_rate_is_used,
)
