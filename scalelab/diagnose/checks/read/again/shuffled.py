"""Test an order of rows against a shuffled one: trend, neighbours, and periods of what describes each row.

Under a shuffle the rows are exchangeable, so values by rank have no trend, no likeness of neighbours and a flat
spectrum. Each is judged one-sided where an epoch of few windows, which balances itself, may only lie below.
"""

from typing import NamedTuple

import numpy as np

LEAST_ROWS = 64
LEAST_VALUES = 16  # distinct ones among windows
MOST_TIED = 0.8  # share of the commonest value, above which a description says too little
SIGMAS = 6.0  # of a normal null: 1e-9 each, so that all tests of a run are far below 1 in 1,000
PERIODOGRAM = 1e-6  # chance that any frequency of a flat spectrum is so strong
BUCKETS, COMPONENTS = 128, 2  # ids of a row's counts, and main directions of these


class Finding(NamedTuple):
    """A test that a shuffled order does not pass: which, of which description, how far beyond its threshold."""

    test: str
    value: str
    over: float
    text: str


def describe_rows(rows: np.ndarray, separator: int) -> dict[str, np.ndarray]:
    """What each row [n, S+1] is: documents that end in it, how rare its tokens are, main directions of its counts."""
    ids = rows % BUCKETS
    keys = np.arange(len(rows))[:, None] * BUCKETS + ids
    counts = np.bincount(keys.ravel(), minlength=len(rows) * BUCKETS).reshape(len(rows), BUCKETS)
    shares = counts / rows.shape[1]
    rare = shares @ -np.log(np.maximum(shares.mean(axis=0), 1e-9))
    centred = np.sqrt(shares) - np.sqrt(shares).mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    main = centred @ vectors[:, ::-1][:, :COMPONENTS]
    described = {"ends of documents": (rows == separator).sum(axis=1), "rarity of tokens": rare}
    return described | {f"content ({i + 1})": main[:, i] for i in range(main.shape[1])}


def find_orders(values: np.ndarray, at: np.ndarray, name: str) -> list[Finding]:
    """Find the tests that values [n] fail in the order of the rows, whose places in the stream are `at` [n]."""
    scores = _scores(values)
    if scores is None:
        return []
    n, step = len(values), np.diff(at) == 1
    place = at - at.mean()
    trend = float(scores @ place / max(np.sqrt(np.sum(place**2)), 1e-12))
    found = [(abs(trend), "trend", f"{name} follows the place in the stream (correlation {trend / n**0.5:.2g})")]
    if step.sum() >= LEAST_ROWS // 2:
        likeness = float((scores[1:] * scores[:-1])[step].sum() / step.sum() ** 0.5)
        share = likeness / step.sum() ** 0.5
        found.append((likeness, "neighbours", f"{name} of a row is like its neighbour's (correlation {share:.2g})"))
    findings = [Finding(test, name, sigmas / SIGMAS, text) for sigmas, test, text in found if sigmas > SIGMAS]
    if step.all():
        power = np.abs(np.fft.rfft(scores)[1 : (n + 1) // 2]) ** 2 / n
        limit = float(np.log(len(power) / PERIODOGRAM))
        if power.max() > limit:
            period = n / (1 + int(np.argmax(power)))
            text = f"{name} comes back every {period:.3g} rows"
            findings.append(Finding("period", name, float(power.max()) / limit, text))
    return findings


def _scores(values: np.ndarray) -> np.ndarray | None:
    """Ranks, ties at their mean, to mean 0 and variance 1; None if they say too little."""
    unique, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(values) < LEAST_ROWS or counts.max() > MOST_TIED * len(values) or len(unique) < 2:
        return None
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    centred = ranks - ranks.mean()
    scores: np.ndarray = centred / centred.std()
    return scores
