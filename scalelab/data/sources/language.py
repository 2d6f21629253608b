"""A language whose entropy rate is known: a bigram chain with a Zipf base measure and Dirichlet rows.

The floor under every loss curve on natural text is unknown; here it is a number, so a fitted E can be judged.

The chain has V states. State 0 ends a document. A document's first word follows the Zipf measure z (exponent 1). After
a word w the document ends with probability 1 / MEAN_WORDS, else the next word is drawn from row w ~
Dirichlet(CONCENTRATION z). So documents in any order, each followed by token 0, are one stationary Markov chain: the
entropy rate is exact for every split by document, separators included.
"""

import dataclasses

import numpy as np

from scalelab.errors import BadInput

MEAN_WORDS = 512  # mean of the geometric number of words a document
CONCENTRATION = 16.0  # smaller: rows differ more and the entropy rate falls; 16 gives 2.9 nats at V = 512 (4.5 unigram)
MAX_VOCAB = 4096  # the transition matrix is dense: 128 MB at 4,096


@dataclasses.dataclass(frozen=True)
class Language:
    """Probabilities `start` [V-1] of a document's first word, `follow` [V-1, V-1] of a next word; word i has id i+1."""

    start: np.ndarray
    follow: np.ndarray

    @property
    def vocab_size(self) -> int:
        return len(self.start) + 1


def make_language(vocab_size: int, seed: int) -> Language:
    """Draw the language of `seed`. Raises BadInput outside 3 <= vocab_size <= MAX_VOCAB or 0 <= seed < 2^32."""
    if not 3 <= vocab_size <= MAX_VOCAB:
        raise BadInput(f"a synthetic language needs a vocabulary of 3 to {MAX_VOCAB} tokens, not {vocab_size}")
    if not 0 <= seed < 2**32:
        raise BadInput(f"data.language_seed={seed} is not in 0 .. 2^32 - 1")
    zipf = 1.0 / np.arange(1, vocab_size)
    zipf /= zipf.sum()
    # RandomState, because its streams are frozen for good (NEP 19): the same language under every numpy.
    follow = np.random.RandomState(seed).dirichlet(CONCENTRATION * zipf, size=vocab_size - 1)
    return Language(zipf, follow)


def transition_matrix(language: Language) -> np.ndarray:
    """Probabilities [V, V] of the next token given the current one, state 0 included."""
    full = np.zeros((language.vocab_size, language.vocab_size))
    full[0, 1:] = language.start
    full[1:, 0] = 1 / MEAN_WORDS
    full[1:, 1:] = (1 - 1 / MEAN_WORDS) * language.follow
    return full


def stationary_distribution(chain: np.ndarray) -> np.ndarray:
    """The distribution [V] that `chain` [V, V] leaves unchanged (unique, since every state returns to 0)."""
    equations = chain.T - np.eye(len(chain))
    equations[-1] = 1.0  # one balance equation is redundant and replaced by sum = 1
    return np.linalg.solve(equations, np.eye(len(chain))[-1])


def entropy_rate(language: Language) -> float:
    """Nats per token that no model can beat: sum_i pi_i H(row i) (Cover & Thomas, eq. 4.27)."""
    chain = transition_matrix(language)
    log_chain = np.log(chain, where=chain > 0, out=np.zeros_like(chain))
    return float(-stationary_distribution(chain) @ (chain * log_chain).sum(axis=1))


def sample_documents(language: Language, n_tokens: int, seed: int) -> list[np.ndarray]:
    """Documents (uint16 ids, no separator) that, each followed by one separator, fill exactly `n_tokens`.

    Lengths don't depend on words, so they are drawn first; then all documents grow together, one word a round.
    Raises BadInput below 2 tokens.
    """
    if n_tokens < 2:
        raise BadInput(f"data.n_tokens={n_tokens} leaves no room for a document; 4,000,000 is usual")
    random = np.random.RandomState([seed, 1])
    lengths = _lengths(random, n_tokens)
    order = np.argsort(-lengths, kind="stable")  # longest first: the documents still growing are then a prefix
    ends = np.cumsum(lengths[order])
    starts = ends - lengths[order]
    growing = np.searchsorted(-lengths[order], -np.arange(1, lengths.max() + 1), side="right")
    words = np.empty(lengths.sum(), np.uint16)
    word = _search(_cumulative(language.start[None]), np.zeros(len(lengths), np.int64), random)
    table = _cumulative(language.follow)
    for position, n in enumerate(growing):
        word = word[:n] if position == 0 else _search(table, word[:n], random)
        words[starts[:n] + position] = word + 1
    by_length = np.split(words, ends[:-1])
    return [by_length[i] for i in np.argsort(order)]


def _lengths(random: np.random.RandomState, n_tokens: int) -> np.ndarray:
    """Words in each document; the last document is cut (or left out) so that words and separators sum to `n_tokens`."""
    drawn = random.geometric(1 / MEAN_WORDS, size=16 + 2 * n_tokens // MEAN_WORDS)
    total = np.cumsum(drawn + 1)
    n_whole = int(np.searchsorted(total, n_tokens, side="right"))
    lengths = drawn[:n_whole]
    left = n_tokens - int((lengths + 1).sum())
    if left > 1:
        return np.append(lengths, left - 1)
    lengths[-1:] += left  # a single token is too short for a document and lengthens the last one
    return lengths


def _cumulative(rows: np.ndarray) -> np.ndarray:
    """Cumulative probabilities of row i plus i, flattened: one increasing table, so one search serves every row."""
    table = np.cumsum(rows, axis=1)
    table /= table[:, -1:]
    return (table + np.arange(len(rows))[:, None]).ravel()


def _search(table: np.ndarray, row: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Draw one column for each entry of `row`, by that row's probabilities."""
    width = len(table) // round(table[-1])  # the table ends at the number of rows
    places = np.searchsorted(table, row + random.random_sample(len(row)), side="right")
    return np.minimum(places - row * width, width - 1)
