"""The synthetic language: its entropy rate against closed forms, other algorithms and its own samples."""

import math

import numpy as np
import pytest

from scalelab.data.sources.language import (
    MEAN_WORDS,
    Language,
    entropy_rate,
    make_language,
    sample_documents,
    stationary_distribution,
    transition_matrix,
)
from scalelab.errors import BadInput


def stream(documents):
    return np.concatenate([np.append(d, 0) for d in documents])


def test_one_word_language_in_closed_form():
    # 0 -> 1 always, 1 -> 0 with p: pi_1 = 1 / (1 + p), and only state 1 has entropy.
    p = 1 / MEAN_WORDS
    expected = -(p * math.log(p) + (1 - p) * math.log(1 - p)) / (1 + p)
    assert entropy_rate(Language(np.ones(1), np.ones((1, 1)))) == pytest.approx(expected, rel=1e-12)


def test_identical_rows_make_words_independent():
    z = np.array([0.5, 0.25, 0.125, 0.125])
    p = 1 / MEAN_WORDS
    word_entropy = 1.75 * math.log(2)
    end_entropy = -(p * math.log(p) + (1 - p) * math.log(1 - p))
    # A document is MEAN_WORDS words and one end: every word is drawn once, every word asks once whether it is the last.
    expected = MEAN_WORDS * (word_entropy + end_entropy) / (MEAN_WORDS + 1)
    assert entropy_rate(Language(z, np.tile(z, (4, 1)))) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("vocab_size, seed", [(3, 0), (64, 1), (200, 0)])
def test_stationary_distribution_agrees_with_eigenvector_and_power_iteration(vocab_size, seed):
    chain = transition_matrix(make_language(vocab_size, seed))
    np.testing.assert_allclose(chain.sum(axis=1), 1, atol=1e-12)
    solved = stationary_distribution(chain)
    values, vectors = np.linalg.eig(chain.T)
    leading = np.real(vectors[:, np.argmax(values.real)])
    np.testing.assert_allclose(solved, leading / leading.sum(), atol=1e-10)
    # Squaring is power iteration with doubling: chain^(2^16) has every row equal to pi.
    power = chain
    for _ in range(16):
        power = power @ power
    np.testing.assert_allclose(solved, power[0], atol=1e-9)
    rate = -sum(solved[i] * p * math.log(p) for i in range(vocab_size) for p in chain[i] if p > 0)
    assert entropy_rate(make_language(vocab_size, seed)) == pytest.approx(rate, rel=1e-9)


def test_true_model_scores_the_entropy_rate_on_a_long_sample():
    language = make_language(64, 3)
    tokens = stream(sample_documents(language, 2_000_000, 3))
    surprise = -np.log(transition_matrix(language)[tokens[:-1], tokens[1:]])
    blocks = surprise[: len(surprise) // 1000 * 1000].reshape(-1, 1000).mean(axis=1)  # nearly independent means
    error = blocks.std() / math.sqrt(len(blocks))
    assert error < 2e-3
    assert abs(surprise.mean() - entropy_rate(language)) < 4 * error


def test_sample_follows_the_chain():
    language = make_language(8, 5)
    chain = transition_matrix(language)
    tokens = stream(sample_documents(language, 1_000_000, 5)).astype(np.int64)
    counts = np.bincount(tokens[:-1] * 8 + tokens[1:], minlength=64).reshape(8, 8)
    seen = counts.sum(axis=1, keepdims=True)
    spread = np.sqrt(np.maximum(chain * (1 - chain), 1e-6) / seen)
    assert (np.abs(counts / seen - chain) < 5 * spread + 1e-9).all()
    assert counts[0, 0] == 0  # no empty documents


@pytest.mark.parametrize("n_tokens", [2, 3, 513, 1000, 65_537])
def test_words_and_separators_fill_the_corpus_exactly(n_tokens):
    documents = sample_documents(make_language(16, 0), n_tokens, 0)
    assert sum(len(d) + 1 for d in documents) == n_tokens
    assert all(len(d) and d.min() >= 1 and d.max() < 16 for d in documents)


def test_a_lone_token_left_over_lengthens_the_last_document():
    language = make_language(16, 0)
    whole = len(sample_documents(language, 100_000, 0)[0]) + 1  # tokens of the first document
    for n_tokens, n_documents in ((whole, 1), (whole + 1, 1), (whole + 2, 2)):
        documents = sample_documents(language, n_tokens, 0)
        assert len(documents) == n_documents and sum(len(d) + 1 for d in documents) == n_tokens


def test_refused_languages_name_the_number():
    with pytest.raises(BadInput, match="not 5000"):
        make_language(5000, 0)
    with pytest.raises(BadInput, match="language_seed=-1"):
        make_language(16, -1)
    with pytest.raises(BadInput, match="n_tokens=1 "):
        sample_documents(make_language(16, 0), 1, 0)
