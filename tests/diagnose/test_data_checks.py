"""Checks of the data on samples made by rule: each fault in a corpus of Markov chains, and the corpus without one."""

import dataclasses
import types

import numpy as np
import pytest

from scalelab.data.shards import Split
from scalelab.diagnose.checks.read import data as data_checks
from scalelab.diagnose.checks.read.again.batches import Stretch
from scalelab.diagnose.checks.read.again.lengths import compare_lengths, compare_splits
from scalelab.diagnose.checks.read.bigrams import own_order, window_scores
from scalelab.diagnose.checks.read.data import check_data, check_repetition, check_too_good
from scalelab.diagnose.checks.read.held_out import judge_held_out
from scalelab.diagnose.sample import DataSample, fingerprint_documents
from scalelab.diagnose.verdict import Gap, Judged
from tests.diagnose.evidences import ask, healthy

V, S, N = 64, 65, 400
CHAIN = np.random.default_rng(0).dirichlet(np.full(V, 0.05), size=V).cumsum(axis=1)


def windows(seed, n=N):
    """[n, S] ids of a bigram language."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((n, S), int)
    for t in range(1, S):
        ids[:, t] = np.minimum((rng.random((n, 1)) > CHAIN[ids[:, t - 1]]).sum(axis=1), V - 1)
    return ids


def sample(tokens=None, documents=None, order=None, vocab_size=V, epochs=0.5, lengths=(100,) * 40):
    offsets = np.cumsum([0, *lengths])
    part = types.SimpleNamespace(train=Split((np.zeros(offsets[-1], np.uint16),), (offsets,)))
    dataset = types.SimpleNamespace(vocab_size=vocab_size, fingerprint="f", parts=[part])
    batches = types.SimpleNamespace(windows=range(N), seen=lambda step: {"text": (1000, epochs)})
    rng = np.random.default_rng(4)
    return DataSample(
        dataset,
        batches,
        np.arange(N),
        windows(1) if tokens is None else tokens,
        windows(2, 50),
        rng.permutation(N) if order is None else order,
        np.arange(N, dtype=np.uint64) if documents is None else documents,
    )


def found(data, check=check_data, **changed):
    run = dataclasses.replace(healthy(model__vocab_size=V, **changed), data=data)
    return {verdict.cause: verdict for verdict in ask(check, run)}


def with_rows(replace):
    tokens = windows(1)
    tokens[100:140] = replace(tokens[100:140])
    return sample(tokens)


RNG = np.random.default_rng(9)
FAULTS = {
    "blank": (lambda: with_rows(lambda rows: np.full_like(rows, 7)), "corrupt_shard", "one token over and over"),
    "noise": (lambda: with_rows(lambda rows: RNG.integers(0, V, rows.shape)), "corrupt_shard", "numbers 100 to 139"),
    "shuffled": (lambda: with_rows(lambda rows: RNG.permuted(rows, axis=None)), "corrupt_shard", "in random order"),
    "phrase": (lambda: with_rows(lambda rows: np.resize([3, 9, 3, 40], rows.shape)), "corrupt_shard", "100 to 139"),
    "twice": (
        lambda: sample(documents=np.concatenate([np.arange(N), np.arange(100, 200)]).astype(np.uint64)),
        "repeated_data", "from document 400 on",
    ),
    "again": (
        lambda: sample(documents=np.concatenate([np.arange(N), RNG.permutation(N)[:90]]).astype(np.uint64)),
        "duplicated_documents", "here and there",
    ),
    "letters": (
        lambda: sample(lengths=[100] * 40 + [2] * 90), "duplicated_documents",
        "90 of 130 documents, with 4% of all tokens, are of a single token",
    ),
    "in order": (lambda: sample(order=np.arange(N)), "not_shuffled", "rank correlation 1"),
    "backwards": (lambda: sample(order=np.arange(N)[::-1]), "not_shuffled", "rank correlation -1"),
}  # fmt: skip


def test_a_sound_corpus_has_no_verdict():
    assert found(sample()) == {} and found(sample(epochs=3.0), check_repetition) == {}


def test_numbers_in_order_have_no_odd_windows_though_their_pairs_of_digits_differ(monkeypatch):
    """Those from 10,000 to 19,999 have other pairs of digits than the rest: that is no order lost."""
    text = np.frombuffer(" ".join(map(str, range(60_000))).encode(), np.uint8).astype(int)
    rows = text[: len(text) // S * S].reshape(-1, S)
    numbers = rows[np.linspace(0, len(rows) - 1, N).astype(int)]
    assert found(sample(numbers, vocab_size=V)) == {}
    monkeypatch.setattr(data_checks, "lost_order", lambda odd, others: True)
    assert "in random order" in found(sample(numbers, vocab_size=V))["corrupt_shard"].evidence


def test_a_shard_in_random_order_is_named_in_a_language_whose_letters_say_little_of_the_next():
    """Words of random letters: the token before tells 0.7 nats; a tenth of the text in random order has none."""
    random = np.random.default_rng(2)
    words = [bytes(random.integers(97, 123, random.integers(2, 8)).astype(np.uint8)) for _ in range(400)]
    text = np.frombuffer(b" ".join(words[i] for i in random.integers(400, size=N * S)), np.uint8)[: N * S]
    rows = text.astype(int).reshape(N, S)
    assert found(sample(rows, vocab_size=256)) == {}
    shard = slice(N // 2, N // 2 + N // 10)
    rows[shard] = random.permuted(rows[shard].ravel()).reshape(-1, S)
    assert own_order(rows[shard]) < 0.1 < 0.25 < own_order(rows[: N // 10])
    assert "in random order" in found(sample(rows, vocab_size=256))["corrupt_shard"].evidence


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_data_is_named(fault):
    data, cause, words = FAULTS[fault]
    verdicts = found(data())
    assert list(verdicts) == [cause] and words in verdicts[cause].evidence


def test_a_stretch_of_known_letters_inside_documents_is_content_and_what_lasts_is_not():
    """An encoded picture in every tenth document: single windows far apart, of tokens that the others have too."""
    tokens, alike = windows(1), RNG.integers(0, V, (40, S))
    tokens[5::10] = alike
    assert found(sample(tokens)) == {}
    assert list(with_rows_found := found(with_rows(lambda rows: alike))) == ["corrupt_shard"], with_rows_found


def test_a_larger_vocabulary_is_a_note():
    (note,) = ask(check_data, dataclasses.replace(healthy(model__vocab_size=V), data=sample(vocab_size=20)))
    assert isinstance(note, Gap) and "69% of the vocabulary" in note.missing and "model.vocab_size=20" in note.how


def split(*documents):
    """A split in one shard."""
    offsets = np.cumsum([0, *map(len, documents)])
    return Split((np.concatenate(documents),), (offsets,))


def test_lines_that_come_up_again_are_no_copies():
    lines = [RNG.integers(1, 200, size).astype(np.uint16) for size in (20, 127, 128, 900)]
    part = types.SimpleNamespace(train=split(*lines, *lines))
    dataset = types.SimpleNamespace(vocab_size=256, parts=[part])
    assert len(fingerprint_documents(dataset)) == 4 and len(set(fingerprint_documents(dataset).tolist())) == 2


def test_held_out_documents_of_another_length_are_no_fair_draw():
    sizes = np.sort(np.exp(RNG.normal(5, 1, 300)).astype(int) + 8)
    texts = [RNG.integers(1, 200, size).astype(np.uint16) for size in sizes]
    longest, drawn = range(280, 300), RNG.permutation(300)[:20]
    for held_out, words in ((longest, "longer than its training documents"), (range(40), "shorter"), (drawn, "")):
        sides = [split(*(texts[i] for i in range(300) if (i in held_out) == is_val)) for is_val in (False, True)]
        assert compare_splits(*sides).startswith(words) and bool(compare_splits(*sides)) == bool(words)
    few = np.arange(300) >= 296  # too few for a sum of ranks: the chance of the four longest is 3e-9, of five 5e-11
    assert compare_lengths(sizes, few) == "" and compare_lengths(sizes, np.arange(300) >= 295)


def test_rows_of_the_validation_split_are_a_cause():
    texts = [RNG.integers(1, 200, 400).astype(np.uint16) for _ in range(30)]
    part = types.SimpleNamespace(train=split(*texts[:24]), val=split(*texts[24:]))
    data = types.SimpleNamespace(dataset=types.SimpleNamespace(vocab_size=256, parts=[part]))

    def judged(side, n_rows=16):
        rows = side.shards[0][: 129 * n_rows].reshape(4, n_rows // 4, 129).astype(int)
        stretch = Stretch(None, np.arange(4) + 10, None, rows, rows)
        return [finding for finding in judge_held_out(data, stretch) if not isinstance(finding, Judged)]

    assert judged(part.train) == []
    (verdict,) = judged(part.val)
    assert verdict.cause == "val_in_train" and verdict.steps == (11, 14) and "16 of 16 rows" in verdict.evidence
    part.val = split(*texts[:4])  # copies on both sides: another check says so
    assert judged(part.train) == []


def test_other_data_than_the_runs_are_told_and_not_judged():
    data = sample(order=np.arange(N))
    run = dataclasses.replace(healthy(), data=data, record={"data": {"fingerprint": "other"}})
    assert [verdict.cause for verdict in ask(check_data, run)] == ["data_changed"]


def test_repetition_needs_epochs_and_a_gap():
    evaluations = [{"step": 400, "val_loss": 4.5}]
    run = dataclasses.replace(healthy(), data=sample(epochs=30.0), evaluations=evaluations)
    (verdict,) = ask(check_repetition, run)
    assert verdict.cause == "repeated_data" and "30 times" in verdict.evidence
    run = dataclasses.replace(run, evaluations=[{"step": 400, "val_loss": 3.3}])
    assert ask(check_repetition, run) == []


def test_a_loss_below_the_entropy_rate_sees_its_targets():
    run = healthy()
    assert ask(check_too_good, dataclasses.replace(run, record=run.record | {"data": {"entropy_rate": 3.0}})) == []
    (verdict,) = ask(check_too_good, dataclasses.replace(run, record=run.record | {"data": {"entropy_rate": 3.6}}))
    assert verdict.cause == "mask_leak"


def test_scores_are_those_of_the_language():
    """Mean nats of the smoothed bigram model lie between the chain's entropy rate and that of its unigrams."""
    scores = window_scores(windows(1))
    rows = np.diff(CHAIN, axis=1, prepend=0)
    stationary = np.bincount(windows(5).ravel(), minlength=V) / windows(5).size
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = float(stationary @ -np.where(rows > 0, rows * np.log(rows), 0).sum(axis=1))
        unigram = float(-np.where(stationary > 0, stationary * np.log(stationary), 0).sum())
    assert rate < scores.mean() < unigram
