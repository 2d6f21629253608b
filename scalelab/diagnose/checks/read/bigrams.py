"""Find windows unlike the rest of a corpus (constant, noise, out of order) by a bigram model of the others."""

import numpy as np

from scalelab.diagnose.statistics import MAD_TO_SIGMA

BUCKETS = 4096  # ids are counted modulo this
SMOOTHING = 4.0  # pseudo-counts of the unigram distribution in the bigram model
OUTLIER = 8.0  # threshold of a window's bigram score, in robust sigmas
STRANGE = 0.05  # share of tokens that the other windows never have, from which windows are noise
CONSTANT = 0.9  # share of one token from which a window is constant
IN_RANDOM_ORDER = "usual tokens in random order"
LEAST_ORDER = 0.25  # nats a token that the token before must tell, for an order to be lost
REPETITIVE = 0.25  # distinct pairs of a window / the median window's, below which a window repeats itself


def window_scores(windows: np.ndarray) -> np.ndarray:
    """Score windows [n, S+1] in nats a token [n] by a smoothed bigram model of the other half of them."""
    scores = np.zeros(len(windows))
    for half in (0, 1):
        scores[1 - half :: 2] = bigram_scores(windows[half::2], windows[1 - half :: 2])
    return scores


def bigram_scores(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Score windows `test` [m, S+1] in nats a token [m] by a smoothed bigram model of `train` [n, S+1]."""
    train, test = train % BUCKETS, test % BUCKETS
    unigram = np.bincount(train.ravel(), minlength=BUCKETS) + 0.5
    unigram = unigram / unigram.sum()
    pairs, counts = np.unique(train[:, :-1].ravel() * BUCKETS + train[:, 1:].ravel(), return_counts=True)
    before = np.bincount(train[:, :-1].ravel(), minlength=BUCKETS)
    wanted = test[:, :-1] * BUCKETS + test[:, 1:]
    at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    joint = np.where(pairs[at] == wanted, counts[at], 0)
    p = (joint + SMOOTHING * unigram[test[:, 1:]]) / (before[test[:, :-1]] + SMOOTHING)
    scores: np.ndarray = -np.log(p).mean(axis=1)
    return scores


def own_order(windows: np.ndarray) -> float:
    """Nats a token by which a bigram model of half of the windows scores the others below the same in random order.

    Near zero where the token before says nothing (digits of readings), or where the windows are too few to know it.
    """
    random = np.random.default_rng(0)
    mixed = random.permuted(windows, axis=1)
    gains = [bigram_scores(windows[h::2], of[1 - h :: 2]).mean() for h in (0, 1) for of in (mixed, windows)]
    return float(gains[0] - gains[1] + gains[2] - gains[3]) / 2


def lost_order(odd: np.ndarray, others: np.ndarray) -> bool:
    """Whether the odd windows have no order of their own, where as many of the others have one.

    Usual tokens with other neighbours are no damage: numbers from 10,000 to 19,999 among those up to 60,000.
    """
    alike = others[np.linspace(0, len(others) - 1, min(len(odd), len(others))).astype(int)]
    known = own_order(alike) if len(alike) > 1 else 0.0
    return known >= LEAST_ORDER and own_order(odd) < known / 2


def count_pairs(windows: np.ndarray) -> np.ndarray:
    """Count distinct pairs of neighbours [n] in windows [n, S+1]."""
    windows = windows % BUCKETS
    pairs = np.sort(windows[:, :-1] * BUCKETS + windows[:, 1:], axis=1)
    return np.count_nonzero(np.diff(pairs, axis=1, prepend=-1), axis=1)


def far_from_median(scores: np.ndarray, least: float) -> np.ndarray:
    """Find scores farther from the median than OUTLIER robust sigmas and `least`."""
    away = np.abs(scores - np.median(scores))
    return away > max(OUTLIER * MAD_TO_SIGMA * float(np.median(away)), least)


def running_median(scores: np.ndarray, width: int) -> np.ndarray:
    """The median of each score [n] and its neighbours, `width` together, fewer at the ends: what lasts, not one."""
    padded = np.pad(scores, (width // 2, width - 1 - width // 2), mode="reflect")
    medians: np.ndarray = np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)
    return medians


def lasts(odd: np.ndarray) -> np.ndarray:
    """Whether each window [n] has a neighbour in the sample that is odd too: a place, not a stretch of a document."""
    beside = np.pad(odd, 1)
    neighbours: np.ndarray = beside[:-2] | beside[2:]
    return neighbours


def is_foreign(odd: np.ndarray, others: np.ndarray) -> bool:
    """Whether windows hold what no text of the others does: one token over and over, or tokens that they never have.

    Else they are of the same letters in another use, as a table or an encoded picture inside a document.
    """
    known = np.bincount(others.ravel() % BUCKETS, minlength=BUCKETS) > 0
    largest = np.mean([np.bincount(row % BUCKETS).max() / len(row) for row in odd])
    return bool(largest > CONSTANT or np.mean(~known[odd % BUCKETS]) > STRANGE)


def describe_windows(odd: np.ndarray, others: np.ndarray, unlikely: bool) -> str:
    """Name in a word what odd windows are."""
    largest = np.mean([np.bincount(row % BUCKETS).max() / len(row) for row in odd])
    if largest > CONSTANT:
        return f"one token over and over ({largest:.0%} of a window)"
    if not unlikely:
        return "one phrase over and over"
    here, there = (np.bincount(part.ravel() % BUCKETS, minlength=BUCKETS) / part.size for part in (odd, others))
    distance = 0.5 * float(np.abs(here - there).sum())
    return IN_RANDOM_ORDER if distance < 0.25 else f"of other tokens (total variation {distance:.2g})"
