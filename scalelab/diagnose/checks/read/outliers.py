"""Read the batches of given steps again, and describe how they differ from the corpus."""

import numpy as np

from scalelab.data.tokenizers.chat import unmask_ids
from scalelab.diagnose.checks.read.bigrams import OUTLIER, REPETITIVE, bigram_scores, count_pairs, describe_windows
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.statistics import MAD_TO_SIGMA

MOST_BATCHES = 64  # most batches read of a stretch
LEAST_SCORE = 0.25  # nats a token that a batch's mean is from the corpus's, as for blocks of windows (data.py)
ODD_ROWS = 0.25  # share of a batch's sequences


def describe_odd_batches(evidence: Evidence, first: int, last: int) -> str:
    """Describe how the batches of the steps `first` to `last` differ from the corpus; "" if they don't.

    A batch is odd if it is far less likely, by bigrams, than as many windows of the sample, or if a quarter of its
    sequences repeat themselves. (A likelier batch proves nothing: the model may have read these very windows.) Not
    judged if the guard or the user has skipped batches, or the data are absent.
    """
    data, skipped = evidence.data, any(event.get("action") == "rewind" for event in evidence.kinds("guard"))
    if (
        data is None
        or skipped
        or evidence.record.get("changes_by_hand")
        or evidence.record.get("rewinds")
        or len(data.windows) < 2
    ):
        return ""
    numbers = range(max(first, 1) - 1, min(last, first + MOST_BATCHES - 1))
    usual = bigram_scores(data.windows[::2], data.windows[1::2])
    few = REPETITIVE * np.median(count_pairs(data.windows))
    odd, scores, rows = [], [], []
    for number in numbers:
        batch = unmask_ids(np.asarray(data.batches.batch(number)))
        batch = batch[(batch >= 0).all(axis=1)]
        if not len(batch):
            continue
        own = bigram_scores(data.windows[::2], batch)
        error = MAD_TO_SIGMA * float(np.median(np.abs(usual - np.median(usual)))) / len(batch) ** 0.5
        far = float(own.mean() - np.median(usual)) > max(OUTLIER * error, LEAST_SCORE)
        if far or np.mean(count_pairs(batch) < few) >= ODD_ROWS:
            odd.append(number + 1)
            scores.append(float(own.mean()))
            rows.append(batch)
    if not odd:
        return ""
    what = describe_windows(np.concatenate(rows), data.windows, float(np.mean(scores)) > float(np.median(usual)))
    which = f"of step {odd[0]} is" if len(odd) == 1 else f"of {len(odd)} steps from {odd[0]} to {odd[-1]} are"
    text = f"the batch{'es' * (len(odd) > 1)} {which} {what} ({np.mean(scores):.3g} nats a token under a bigram model"
    return f"{text}, the corpus {np.median(usual):.3g})"
