"""cuDNN's attention of packed documents: the runs handed to it, by a reference that reads them as cuDNN does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.model.attention import kernels
from scalelab.model.attention.fused import cudnn, packed
from scalelab.model.attention.mask import MaskInfo, Scoring
from tests.model.attention import cudnn_by_hand
from tests.model.attention.test_kernels import SCALE, SIGHTS, arrays, plain, with_gradients
from tests.quick import one_in, others_slow


@pytest.fixture(autouse=True)
def by_hand(monkeypatch):
    calls = [cudnn_by_hand.ByHand(function) for function in (cudnn_by_hand.forward, cudnn_by_hand.backward)]
    for name, call in zip(cudnn.PRIMITIVES, calls, strict=True):
        monkeypatch.setattr(cudnn.jax_cudnn, name, call)
    monkeypatch.setitem(cudnn.HIDDEN, "float32", -(2.0**41))  # cuDNN itself takes 16 bits alone
    forget_traces()
    yield calls
    forget_traces()


def forget_traces():
    """jax keeps what it traced of a function, here with another test's primitives."""
    cudnn.forward.cache_clear()
    cudnn.backward.cache_clear()


def fused(segment, window=0, offsets=True):
    return lambda q, k, v: cudnn.cudnn_attention(q, k, v, segment, cudnn.Options(SCALE, True, window, offsets))


def check_against_plain(segment, window, given, offsets=True):
    expected = with_gradients(plain(MaskInfo(segment), window), *given)
    for wanted, actual in zip(expected, with_gradients(fused(segment, window, offsets), *given), strict=True):
        np.testing.assert_allclose(actual, wanted, atol=1e-5)


@pytest.mark.parametrize("seed", others_slow(lambda seed: seed // 3 != 1, one_in(9, range(9))))  # 3 to 5: like 0 to 2
def test_any_documents_are_plain_attention_forward_and_backward(seed, by_hand):
    """Boundaries at random; as many documents as there are runs, most of one token; one more."""
    random, length = np.random.default_rng(seed), int(np.random.default_rng(seed).integers(20, 40))
    rows = np.cumsum(random.random((2, length)) < random.choice([0.02, 0.1, 0.2]), axis=1)
    most = packed.most_runs(2, length)
    if seed % 3:
        rows = np.stack([np.zeros(length), np.minimum(np.arange(length), most - 3 + seed % 3)])
    number = sum(len(np.unique(row)) for row in rows)
    assert seed % 3 == 0 or number == most - 1 + seed % 3
    check_against_plain(jnp.asarray(rows, jnp.int32), [0, 0, 5][seed // 3], arrays(length))
    fits = number <= most
    assert fits == (seed % 3 != 2) and [call.calls for call in by_hand] == [fits, fits]


@pytest.mark.parametrize(("sight", "window"), SIGHTS.values(), ids=SIGHTS)
@pytest.mark.parametrize("offsets", one_in(2, [True, False]))
def test_each_mask_is_plain_attention_forward_and_backward(sight, window, offsets, monkeypatch):
    """By offsets or with a mask of all pairs; a layer's flag chooses among the program's two windows."""
    monkeypatch.setattr(kernels, "target_capability", lambda: (9, 0) if offsets else (8, 0))
    attend = lambda q, k, v: kernels.compute_attention(q, k, v, Scoring(SCALE, sight, window), "cudnn")  # noqa: E731
    given = arrays(50)
    for wanted, actual in zip(
        with_gradients(plain(sight, window), *given), with_gradients(attend, *given), strict=True
    ):
        np.testing.assert_allclose(actual, wanted, atol=1e-5)


def documents_of(*lengths):
    """A row of documents of these lengths."""
    return np.repeat(np.arange(len(lengths)), lengths)


def test_runs_by_hand():
    """Two rows of six tokens: documents of 1, 3 and 2, and of 6; sixteen runs of which four are used."""
    runs, number = packed.document_runs(jnp.asarray([documents_of(1, 3, 2), documents_of(6)]))
    assert number == 4 and runs.q_length.tolist() == [1, 3, 2, 6] + [0] * 8
    assert runs.q_start.tolist() == [0, 1, 4, 6] + [12] * 8
    assert runs.position_BS.tolist() == [[0, 0, 1, 2, 0, 1], [0, 1, 2, 3, 4, 5]]
    lengths, _, offsets, key_offsets = cudnn.memory_runs(runs, (2, 6, 4, 8), (2, 6, 2, 8))
    assert lengths.shape == (2, 6) and offsets.shape == (2, 7)
    assert offsets.ravel().tolist() == [32 * x for x in [0, 1, 4, 6] + [12] * 10]
    assert key_offsets.ravel().tolist() == [16 * x for x in [0, 1, 4, 6] + [12] * 10]  # of two heads, not four


def test_the_document_that_keys_share_with_later_queries_by_hand():
    keys = jnp.asarray([documents_of(3, 3), documents_of(4, 2), documents_of(6)])
    queries = jnp.asarray([[1, 1, 5, 5], [7, 7, 7, 8], [0, 0, 0, 0]])
    runs = packed.shared_runs(queries, keys)
    assert runs.q_length.tolist() == [2, 1, 4, 0, 0, 0] and runs.k_length.tolist() == [3, 1, 6, 0, 0, 0]
    assert runs.q_start.tolist() == [0, 4, 8, 12, 12, 12] and runs.k_start.tolist() == [3, 11, 12, 18, 18, 18]
    assert runs.q_covered.sum(1).tolist() == [2, 0, 4] and runs.k_covered.sum(1).tolist() == [3, 0, 6]


@pytest.mark.full
@pytest.mark.parametrize("shared", [True, False])
def test_trials_under_vmap_are_each_by_itself(shared, by_hand):
    """All trials' rows go into one call; `shared`: the documents are the same for all."""
    given = [jnp.stack([x, x / 2, -x]) for x in arrays(24)]
    rows = jnp.asarray([[documents_of(a, 24 - a), documents_of(3, a, 21 - a)] for a in (1, 5, 9)])
    attend = lambda segment, *x: with_gradients(fused(segment), *x)  # noqa: E731
    many = jax.vmap(attend, in_axes=(None if shared else 0, 0, 0, 0, 0))(rows[0] if shared else rows, *given)
    assert [call.calls for call in by_hand] == [1, 1]
    for trial in range(3):
        expected = with_gradients(plain(MaskInfo(rows[0 if shared else trial]), 0), *(x[trial] for x in given))
        for wanted, actual in zip(expected, many, strict=True):
            np.testing.assert_allclose(actual[trial], wanted, atol=1e-5)


def test_rows_beyond_the_reach_of_offsets_are_computed_apart(monkeypatch, by_hand):
    """Offsets are 32 bits wide: here a row of 20 x 4 x 8 numbers is within their reach, two are not."""
    monkeypatch.setattr(cudnn, "MOST_OFFSET", 20 * 4 * 8)
    check_against_plain(jnp.asarray([documents_of(5, 15), documents_of(12, 8)]), 0, arrays(20))
    assert [call.calls for call in by_hand] == [2, 2]


@pytest.mark.parametrize(
    ("d_head", "kind", "capability", "reason"),
    [
        (128, "bfloat16", (8, 0), ""),
        (128, "float16", (12, 0), ""),
        (256, "bfloat16", (9, 0), ""),
        (256, "bfloat16", (8, 0), "up to 128 on compute capability 8.0"),
        (192, "bfloat16", (10, 0), "up to 128 on compute capability 10.0"),
        (264, "bfloat16", (9, 0), "up to 256 on compute capability 9.0"),
        (64, "float32", (9, 0), "not float32 and 64"),
        (64, "float16", (7, 0), "from compute capability 8.0 on"),
    ],
)
def test_what_cudnn_takes_by_chip(d_head, kind, capability, reason):
    why = cudnn.obstacle(d_head, jnp.dtype(kind), capability)
    assert (reason in why) if reason else why == ""
