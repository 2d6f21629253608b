"""Judge documents that a run reads and is scored on: near copies, validation text in training, distributions."""

import numpy as np

from scalelab.data.shards import Split
from scalelab.diagnose.checks.read.again.lengths import compare_splits
from scalelab.diagnose.checks.read.again.shingles import (
    LENGTH_BYTES,
    LENGTH_IDS,
    LONG_BYTES,
    LONG_IDS,
    Documents,
    Nearest,
    drop_spaces,
    find_nearest,
    find_shingles,
    take_documents,
)
from scalelab.diagnose.checks.read.again.two_sample import compare_sides
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.sample import BYTES, DataSample
from scalelab.diagnose.verdict import Findings, Gap, Judged, Verdict, make_verdict

MOST_TRAIN, MOST_VAL = 2_000_000, 250_000  # tokens compared
SHARED = 0.05  # share of validation documents with a copy in training
CHANCE = 2.0  # standard deviations by which their number must exceed it: few documents have some by chance
COPIES = 0.05  # share of the training documents, by tokens, that are near copies, not equal ones, of another
LEAST_NEAR = 4  # such documents; two long files of one corpus may well share half of their passages
LEAST_DOCUMENTS = 20  # of training, for near copies among them


def check_documents(evidence: Evidence) -> Findings:
    """Compare training and validation documents, if the run's own can be read."""
    data = evidence.data
    if data is None or evidence.record.get("data", {}).get("fingerprint") not in (None, data.dataset.fingerprint):
        return []  # the checks of the sample report it
    train, val = (_documents(data, side) for side in ("train", "val"))
    length, long = (LENGTH_BYTES, LONG_BYTES) if data.dataset.vocab_size <= BYTES else (LENGTH_IDS, LONG_IDS)
    as_read = drop_spaces if data.dataset.vocab_size <= BYTES else lambda documents: documents
    pool = find_shingles(as_read(train), length)
    held_out = find_nearest(find_shingles(as_read(val), length), pool, long)
    among = find_nearest(pool, pool, long, itself=True)
    return [*_shared(data, train, val, held_out), *_near_copies(train, among), *_distributions(data)]


def _splits(data: DataSample, side: str) -> list[Split]:
    splits = [part.train if side == "train" else part.val for part in data.dataset.parts]
    return [split for split in splits if split.shards]


def _documents(data: DataSample, side: str) -> Documents:
    """Documents of all sources together, as many tokens of each as its share."""
    splits, most = _splits(data, side), MOST_TRAIN if side == "train" else MOST_VAL
    total = sum(split.n_tokens for split in splits)
    taken = [take_documents(split, max(1, most * split.n_tokens // total)) for split in splits]
    lengths = np.concatenate([each.lengths for each in taken])
    tokens = np.concatenate([each.tokens for each in taken])
    return Documents(tokens, np.concatenate([[0], np.cumsum(lengths)]))


def _shared(data: DataSample, train: Documents, val: Documents, nearest: Nearest) -> Findings:
    """Judge validation documents that stand in the training data, whole or nearly."""
    judged = Judged("train and validation share no document")
    if not len(nearest.share):
        return [Gap("val_in_train", "no validation document is long enough", "longer documents")]
    compared = len(train.tokens) / max(sum(split.n_tokens for split in _splits(data, "train")), 1)
    copies = nearest.is_copy
    share = min(1.0, float(np.mean(copies)) / compared)
    if share <= SHARED + CHANCE * (SHARED / len(copies)) ** 0.5:
        return [judged]
    at = int(np.argmax(np.where(copies, nearest.share, 0.0)))
    begin, end = train.offsets[nearest.other[at]], train.offsets[nearest.other[at] + 1]
    same = np.array_equal(_tokens(val, nearest.document[at]), train.tokens[begin:end])
    text = f"{copies.sum()} of {len(copies)} validation documents stand in the training data, whole or nearly"
    text += f"; document {nearest.document[at]} of them " + ("is one of it" if same else "shares ")
    text += "" if same else f"{nearest.share[at]:.0%} of its passages with one of it"
    text += f" (of the training data {compared:.0%} were compared)" * (compared < 1)
    text += ": the validation loss measures memory"
    knob = "hold copies out together with their documents, and prepare the data again"
    confirm = "compare the validation documents with the files of the training data"
    return [judged, make_verdict("val_in_train", "test", share / SHARED, text, knob, confirm)]


def _tokens(documents: Documents, number: int) -> np.ndarray:
    return documents.tokens[documents.offsets[number] : documents.offsets[number + 1]]


def _near_copies(train: Documents, nearest: Nearest) -> Findings:
    """Judge training documents that are nearly others; equal ones are counted elsewhere."""
    judged = Judged("near-duplicates")
    if len(nearest.share) < LEAST_DOCUMENTS:
        return []
    chosen = np.flatnonzero(nearest.is_copy)
    near = [
        i for i in chosen if not np.array_equal(_tokens(train, nearest.document[i]), _tokens(train, nearest.other[i]))
    ]
    share = float(train.lengths[nearest.document[near]].sum() / max(train.lengths.sum(), 1))
    if share <= COPIES or len(near) < LEAST_NEAR:
        return [judged]
    first = near[0]
    text = f"{len(near)} of {len(nearest.share)} documents, with {share:.0%} of all tokens, are nearly another one, "
    text += "without being equal: document "
    text += f"{nearest.document[first]} shares {nearest.share[first]:.0%} of its passages with {nearest.other[first]}"
    knob = "keep one of each group of near copies, and prepare the data again"
    confirm = "compare the documents named"
    return [judged, make_verdict("near_duplicates", "test", share / COPIES, text, knob, confirm)]


def _distributions(data: DataSample) -> Findings:
    """Judge whether the validation documents of each source are drawn as its training documents are.

    A validation set of the user's own is of the kind that they want.
    """
    findings: list = []
    if data.dataset.description.get("val_sources"):
        return findings
    for part in data.dataset.parts:
        if lengths := compare_splits(part.train, part.val):
            findings.append(_other_lengths(part.name, lengths))
            continue
        sides = take_documents(part.train, MOST_TRAIN // 2), take_documents(part.val, MOST_VAL)
        distance = compare_sides(*sides)
        if distance is None:
            why = f"{part.name} has too few documents to draw other splits of them"
            findings.append(Gap("val_of_another_kind", why, "more documents"))
            continue
        findings.append(Judged("train and validation are of one distribution"))
        if distance.differs:
            text = f"the validation documents of {part.name} are of another kind than its training documents: their "
            text += (
                f"distance is {distance.value:.3g}, of splits drawn anew {distance.usual:.3g} ({distance.largest:.3g} "
            )
            text += f"at most), {distance.sigmas:.3g} standard deviations above"
            knob = "draw validation documents from all of the data, and prepare them again"
            confirm = "scalelab eval RUN on documents held out at random"
            over = distance.value / distance.largest
            findings.append(make_verdict("val_of_another_kind", "test", over, text, knob, confirm))
    return findings


def _other_lengths(name: str, lengths: str) -> Verdict:
    text = f"the validation documents of {name} are {lengths}: the splits are of two distributions"
    knob = "draw validation documents from all of the data, whatever their length, and prepare them again"
    confirm = "scalelab eval RUN on documents held out at random"
    return make_verdict("val_of_another_kind", "test", np.inf, text, knob, confirm)


CHECKS = (check_documents,)
