"""Judge the data by a sample of windows: repeated, corrupted, unshuffled, of another vocabulary, changed."""

import numpy as np

from scalelab.diagnose.checks.read.bigrams import (
    IN_RANDOM_ORDER,
    REPETITIVE,
    count_pairs,
    describe_windows,
    far_from_median,
    is_foreign,
    lasts,
    lost_order,
    running_median,
    window_scores,
)
from scalelab.diagnose.evidence import Evidence
from scalelab.diagnose.sample import DataSample
from scalelab.diagnose.statistics import smooth_values
from scalelab.diagnose.verdict import Findings, Gap, asks, make_verdict
from scalelab.train.single import load_run_dataset

LEAST_SCORE = 0.5  # nats a token; smaller differences of a window are not corruption
BLOCK = 8  # number of neighbouring windows that are also judged together, as single ones carry little evidence
LEAST_BLOCK_SCORE = 0.25  # threshold of a block's median, in nats a token
OUTLIERS = 0.01  # share of windows
DUPLICATES = 0.05  # share of documents equal to an earlier one
SINGLE, LEAST_SINGLE = 0.02, 50  # share of tokens in documents of one token, and how many of these
REPEATED_RUN = 10  # documents that repeat others in the same order
EPOCHS = 4.0  # epochs beyond which repetition is worth less (Muennighoff et al. 2023, fig. 1)
OVERFIT = 0.1  # nats that the validation loss is above the training loss
CORRELATION = 5.0  # standard errors of the rank correlation of window number and position
SHORT_WINDOW = 64  # tokens up to which one window says little; then blocks alone are judged
NEIGHBOURS = 0.2  # share of windows that follow their predecessor in the corpus
UNUSED = 0.5  # share of the model's vocabulary that the tokenizer does not have
BELOW_ENTROPY = 0.02  # nats that a validation loss lies below the language's entropy rate
LEAST_BPB = 0.3  # bits a byte; text models and compressors reach about 0.6 (Hoffmann et al. 2022; cmix on enwik9: 0.9)


@asks("a sample of windows: vocabulary, documents twice, odd windows, order")
def check_data(evidence: Evidence) -> Findings | None:
    """Run all checks of the sample; a gap if the data can't be read."""
    data = evidence.data
    if data is None:
        why = f"the data can't be read here ({evidence.no_data})" if evidence.no_data else "the data were not read"
        return (
            [Gap("corrupt_shard", why, "data.path to where they are", "curves and records were judged")]
            if evidence.no_data
            else None
        )
    fingerprint = evidence.record.get("data", {}).get("fingerprint")
    if fingerprint not in (None, data.dataset.fingerprint):
        text = f"the data here have fingerprint {data.dataset.fingerprint}, the run was trained on {fingerprint}"
        if _changes_when_asked_again(evidence, data):
            text = f"data.source={evidence.values['data.source']!r} gives other documents each time: {text}"
            knob = "let the source's documents follow from its argument alone, without clock, network or unseeded draws"
            confirm = "scalelab diagnose RUN names another fingerprint each time"
            return [make_verdict("unstable_source", "test", np.inf, text, knob, confirm)]
        return [make_verdict("data_changed", "test", np.inf, text, "the same files as in training", "scalelab prepare")]
    documents = _single_tokens(data) or _duplicates(data)
    return [*_vocabulary(evidence, data), *documents, *_corrupted(data), *_order(evidence, data)]


def _changes_when_asked_again(evidence: Evidence, data: DataSample) -> bool:
    """Whether a user's source gives other documents than a moment ago."""
    if ":" not in evidence.values["data.source"] or not (evidence.folder / "config.json").exists():
        return False
    return load_run_dataset(evidence.config).fingerprint != data.dataset.fingerprint


def _vocabulary(evidence: Evidence, data: DataSample) -> Findings:
    """Note rows of the model that no id has: they cost memory alone, and a larger vocabulary may be meant."""
    ids, rows = data.dataset.vocab_size, int(evidence.values["model.vocab_size"])
    if 1 - ids / rows <= UNUSED:
        return []
    text = (
        f"the tokenizer has {ids} ids and model.vocab_size={rows} is declared: {1 - ids / rows:.0%} of the vocabulary "
    )
    return [Gap("vocabulary_mismatch", f"{text}is never trained", f"model.vocab_size={ids} where that is not meant")]


def _single_tokens(data: DataSample) -> Findings:
    """Judge documents of a single token: a text that was cut into its letters, with a separator behind each."""
    splits = [part.train for part in data.dataset.parts]
    lengths = np.concatenate([np.diff(np.asarray(each)) for split in splits for each in split.offsets])
    single = lengths <= 2  # its separator included
    share = float(lengths[single].sum() / max(lengths.sum(), 1))
    if share <= SINGLE or single.sum() < LEAST_SINGLE:
        return []
    text = f"{single.sum()} of {len(lengths)} documents, with {share:.0%} of all tokens, are of a single token, so "
    text += "that most are equal: of texts that were cut into their letters or ids, each a document"
    knob = "give each text as one document (a string is not a list of documents), and prepare the data again"
    confirm = "scalelab diagnose RUN --batch=STEP shows the text of a step"
    return [make_verdict("duplicated_documents", "test", share / SINGLE, text, knob, confirm)]


def _duplicates(data: DataSample) -> Findings:
    """Judge repeated documents: in the same order (a shard twice), or scattered."""
    prints = data.documents
    unique, first = np.unique(prints, return_index=True)
    share = 1 - len(unique) / max(len(prints), 1)
    if share <= DUPLICATES or len(prints) < REPEATED_RUN:
        return []
    earliest = dict(zip(unique.tolist(), first.tolist(), strict=True))
    lag = np.arange(len(prints)) - np.array([earliest[value] for value in prints.tolist()])
    repeated = lag > 0
    in_order = np.mean((lag[1:] == lag[:-1])[repeated[1:]]) if repeated[1:].any() else 0.0
    shard = in_order > 0.5 and repeated.sum() >= REPEATED_RUN
    at = np.flatnonzero(repeated)
    text = f"{share:.0%} of {len(prints)} documents equal an earlier one, from document {at[0]} on"
    text += f", and {in_order:.0%} of them in the order of those" if shard else ", here and there"
    cause = "repeated_data" if shard else "duplicated_documents"
    knob = "remove them, and prepare the data again"
    confirm = "compare the files named twice in data.path"
    return [make_verdict(cause, "test", share / DUPLICATES, text, knob, confirm)]


def _corrupted(data: DataSample) -> Findings:
    """Judge windows unlike the rest of the corpus: constant, noise, or tokens in random order."""
    scores = window_scores(data.windows)
    distinct = count_pairs(data.windows)
    odd = far_from_median(scores, LEAST_SCORE) | (distinct < REPETITIVE * np.median(distinct))
    odd &= data.windows.shape[1] > SHORT_WINDOW  # a line of digits among sentences is no damage
    if np.mean(odd) > OUTLIERS and not is_foreign(data.windows[odd], data.windows[~odd]):
        odd &= lasts(odd)
    if np.mean(odd) <= OUTLIERS and len(scores) >= 8 * BLOCK:
        odd = far_from_median(running_median(scores, BLOCK), LEAST_BLOCK_SCORE)
    share = float(np.mean(odd))
    if share <= OUTLIERS:
        return []
    numbers = data.numbers[odd]
    kind = describe_windows(data.windows[odd], data.windows[~odd], scores[odd].mean() > np.median(scores))
    if kind == IN_RANDOM_ORDER and not lost_order(data.windows[odd], data.windows[~odd]):
        return []
    text = (
        f"{share:.1%} of {len(odd)} sampled windows, numbers {numbers[0]} to {numbers[-1]} of {data.n_windows}, are "
        f"{kind} "
        f"({scores[odd].mean():.3g} nats a token under a bigram model, the others {np.median(scores):.3g})"
    )
    knob = "replace or leave out those documents"
    confirm = "scalelab diagnose RUN --batch=STEP shows the text of a step"
    return [make_verdict("corrupt_shard", "test", share / OUTLIERS, text, knob, confirm)]


def _order(evidence: Evidence, data: DataSample) -> Findings:
    """Judge whether windows are read in the order of the corpus."""
    if ";" in evidence.values["data.mixture"]:
        return []  # its stages are an order that is declared; `order` judges within each
    order = data.order[: data.n_windows]  # of the first epoch
    if len(order) < 64:
        return []
    ranks = np.argsort(np.argsort(order))
    rho = float(np.corrcoef(ranks, np.arange(len(order)))[0, 1])
    following = float(np.mean(np.diff(order) == 1))
    over = max(abs(rho) * len(order) ** 0.5 / CORRELATION, following / max(NEIGHBOURS, 10 / data.n_windows))
    if over <= 1:
        return []
    text = f"window numbers of the first {len(order)} sequences follow their position (rank correlation {rho:.2g})"
    text += f", and {following:.0%} of them follow their predecessor in the corpus"
    knob = "the shuffle of data/batches/order.py"
    confirm = "scalelab diagnose RUN --batch=STEP shows neighbours in one batch"
    return [make_verdict("not_shuffled", "test", over, text, knob, confirm)]


@asks("epochs beside the validation loss")
def check_repetition(evidence: Evidence) -> Findings | None:
    """Judge too many epochs, with a validation loss above the training loss."""
    loss, scored = evidence.series("train_loss").finite(), evidence.evaluations
    if evidence.data is None:
        return None  # check_data says so
    if not scored or len(loss.steps) < 10:
        return [Gap("repeated_data", "no validation loss, or fewer than ten lines", "eval.every_steps=100")]
    seen = evidence.data.batches.seen(int(loss.steps[-1]))
    name, (_, epochs) = max(seen.items(), key=lambda item: item[1][1])
    near = np.abs(loss.steps - scored[-1]["step"]) <= max(10, 0.05 * evidence.steps)
    gap = float(scored[-1]["val_loss"]) - float(smooth_values(loss.values[near])[-1]) if near.any() else 0.0
    if epochs <= EPOCHS or gap <= OVERFIT:
        return []
    text = f"{name} was read {epochs:.3g} times, and the validation loss is {gap:.3g} nats above the training loss"
    knob = "more tokens, a smaller share of this source, or fewer steps"
    confirm = 'scalelab train … with data.unique_tokens=""'
    return [
        make_verdict(
            "repeated_data", "test", min(epochs / EPOCHS, gap / OVERFIT), text, knob, confirm, (0, int(loss.steps[-1]))
        )
    ]


@asks("a validation loss no model can reach")
def check_too_good(evidence: Evidence) -> Findings | None:
    """Judge a loss below what any model can reach: the targets are visible."""
    scored = [row for row in evidence.evaluations if np.isfinite(row["val_loss"])]
    rate, bpb = evidence.record.get("data", {}).get("entropy_rate"), evidence.record.get("bpb")
    if not scored or (rate is None and bpb is None):
        return None
    lowest = min(scored, key=lambda row: row["val_loss"])
    loss, at = float(lowest["val_loss"]), int(lowest["step"])
    if rate is not None and loss < rate - BELOW_ENTROPY:
        text = f"the validation loss is {loss:.3g} at step {at}, and the language's entropy rate is {rate:.3g}"
    elif evidence.record.get("data", {}).get("chat"):
        return None  # an answer may follow from its question
    elif rate is None and bpb is not None and bpb < LEAST_BPB:
        text = f"the validation loss is {bpb:.2g} bits a byte; no model of text is near that"
    else:
        return []
    knob = "the mask, and the shift of the targets"
    confirm = f"scalelab diagnose {evidence.quoted} --live"
    return [
        make_verdict("mask_leak", "signature", 2.0, f"{text}: the model sees what it predicts", knob, confirm, (at, at))
    ]


CHECKS = (check_data, check_repetition, check_too_good)
