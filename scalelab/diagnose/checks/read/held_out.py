"""Judge whether rows that a run read are text of its validation split: splits may be apart, and read wrongly."""

import numpy as np

from scalelab.data.batches.batches import val_batches
from scalelab.data.shards import Split
from scalelab.data.tokenizers.chat import unmask_ids
from scalelab.diagnose.checks.read.again.batches import Stretch
from scalelab.diagnose.checks.read.again.shingles import (
    LENGTH_BYTES,
    LENGTH_IDS,
    Documents,
    are_among,
    drop_repeats,
    find_shingles,
    take_documents,
)
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.sample import BYTES, DataSample
from scalelab.diagnose.verdict import Findings, Gap, Judged, make_verdict

ASKED = "rows read are text of the training split"
EVALUATED = "windows of the validation loss are text of the validation split"
LEAST = 8  # passages
MOST = 2_000_000  # tokens of each split that are compared
# Share of the passages read that stand in validation and in no training document. Of whole splits none do; of a part of
# the training documents, boilerplate of the others does.
FOREIGN, FOREIGN_OF_PART = 0.02, 0.5


def judge_held_out(data: DataSample, stretch: Stretch) -> Findings:
    """Look for the passages of the rows read in both splits."""
    length = LENGTH_BYTES if data.dataset.vocab_size <= BYTES else LENGTH_IDS
    rows = stretch.read.reshape(-1, stretch.read.shape[-1])
    rows = np.maximum(unmask_ids(rows), 0)
    passages, owner = find_shingles(Documents(rows.ravel(), np.arange(len(rows) + 1) * rows.shape[1]), length)
    if not len(passages):
        return [Gap("val_in_train", f"rows of fewer than {length} tokens have no passage to look for", "longer rows")]
    held_out, _ = _passages([part.val for part in data.dataset.parts], length)
    foreign, limit = are_among(passages, held_out), FOREIGN
    if np.mean(foreign) > limit:
        trained, whole = _passages([part.train for part in data.dataset.parts], length)
        foreign &= ~are_among(passages, trained)
        limit = limit if whole else FOREIGN_OF_PART
    share = float(np.mean(foreign))
    if share <= limit:
        return [Judged(ASKED)]
    n_rows, first = (
        len(np.unique(owner[foreign])),
        int(stretch.steps[owner[foreign].min() // stretch.read.shape[1]]) + 1,
    )
    text = f"{share:.0%} of the passages that the run read stand in its validation split and in no training document: "
    text += f"{n_rows} of {len(rows)} rows, from step {first} on; the validation loss measures memory"
    knob = "read training batches from the training split"
    confirm = f"scalelab diagnose RUN --batch={first}"
    where = first, int(stretch.steps[-1]) + 1
    return [Judged(ASKED), make_verdict("val_in_train", "test", np.inf, text, knob, confirm, where)]


def judge_evaluated(evidence: Evidence, data: DataSample) -> Findings:
    """Look for the passages of the windows that validation losses are taken on: do they stand in the training data?"""
    v = evidence.values
    if data.dataset.description.get("val_sources"):
        return []
    length = LENGTH_BYTES if data.dataset.vocab_size <= BYTES else LENGTH_IDS
    sets = [
        val_batches(part, v["model.seq_len"], v["train.global_batch"], v["eval.batches"])
        for part in data.dataset.val_parts
    ]
    rows = np.concatenate([part.reshape(-1, part.shape[-1]) for part in sets])
    rows = np.maximum(unmask_ids(rows[(rows >= 0).any(axis=1)]), 0)
    passages, _ = find_shingles(Documents(rows.ravel(), np.arange(len(rows) + 1) * rows.shape[1]), length)
    held_out, whole = _passages([part.val for part in data.dataset.parts], length)
    if len(passages) < LEAST or not whole:
        return []
    foreign = ~are_among(passages, held_out)
    trained, _ = _passages([part.train for part in data.dataset.parts], length)
    share = float(np.mean(foreign & are_among(passages, trained)))
    if share <= FOREIGN:
        return _judge_text(data, rows, drop_repeats(np.concatenate([held_out, trained])), length) or [Judged(EVALUATED)]
    text = f"{share:.0%} of the passages that validation losses are taken on stand in the training split and in no "
    text += f"validation document ({len(rows)} windows): the validation loss measures memory"
    knob = "take validation windows from the validation split"
    confirm = "scalelab eval RUN on documents held out at random"
    return [Judged(EVALUATED), make_verdict("val_in_train", "test", np.inf, text, knob, confirm)]


def _judge_text(data: DataSample, rows: np.ndarray, known: np.ndarray, length: int) -> Findings:
    """Look for passages within a document that no document has: the text was changed on its way to the loss."""
    if data.dataset.separator is None:
        return []  # a passage may lie across two documents
    ends = np.flatnonzero(rows.ravel() == data.dataset.separator)
    offsets = np.unique(np.concatenate([np.arange(len(rows) + 1) * rows.shape[1], ends, ends + 1]))
    passages, _ = find_shingles(Documents(rows.ravel(), offsets), length)
    share = float(np.mean(~are_among(passages, known))) if len(passages) >= LEAST else 0.0
    if share <= FOREIGN:
        return []
    text = f"{share:.0%} of the passages that validation losses are taken on stand in no document of the data: their "
    text += "text is changed before the loss, which is that of another kind of text"
    knob = "read validation windows as training windows are read"
    confirm = "compare the rows that the loss is taken on with the documents"
    return [Judged(EVALUATED), make_verdict("val_of_another_kind", "test", np.inf, text, knob, confirm)]


def _passages(splits: list[Split], length: int) -> tuple[np.ndarray, bool]:
    """Hashes of the passages of splits together, and whether all of their documents were taken."""
    splits = [split for split in splits if split.shards]
    total = sum(split.n_tokens for split in splits)
    hashes = [
        find_shingles(take_documents(split, max(1, MOST * split.n_tokens // total)), length)[0] for split in splits
    ]
    return drop_repeats(np.concatenate(hashes)), total <= MOST
