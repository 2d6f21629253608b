"""Packed documents: none attends to another (by derivatives), each has its loss alone, padding does not count."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.configs import base
from scalelab.model import transformer
from scalelab.model.attention import blockwise, documents
from scalelab.model.attention.documents import DocumentEnds, SplitTokens, document_segments
from scalelab.model.pieces import run_pieces
from scalelab.precision.policy import FP32
from scalelab.train.step.gradients import compute_gradients, document_ends
from tests.model.shapes import distance, logit_error, random_params, shape
from tests.quick import one_in, others_slow

SEPARATOR = 7
ROW = [3, 11, 5, 7, 9, 2, 2, 4, 7, 7, 12, 8, 1]  # 4 tokens, 5, 1 and the beginning of one
STARTS = [0, 4, 9, 10]
POSITIONS = ("rope", "learned", "relative", "none")
KINDS = ("plain", "xla", "blockwise")
mask = DocumentEnds(separator=jnp.int32(SEPARATOR))


def test_documents_by_hand():
    segments = document_segments(jnp.asarray([ROW, [7, 7, -1, -1, 3, 7, -1, 5, 5, 5, 7, 7, 0]]), jnp.int32(7))
    assert segments.segment_BS.tolist() == [
        [0, 0, 0, 0, 4, 4, 4, 4, 4, 9, 10, 10, 10],
        [0, 1, 2, 2, 4, 4, 6, 7, 7, 7, 7, 11, 12],
    ]
    assert segments.position_BS.tolist() == [
        [0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0, 1, 2],
        [0, 0, 0, 1, 0, 1, 0, 0, 1, 2, 3, 0, 0],
    ]
    shorter = document_segments(jnp.asarray([ROW]), None, jnp.float32(5))
    assert shorter.segment_BS.tolist() == [[0] * 5 + [5] * 5 + [10] * 3]
    both = document_segments(jnp.asarray([ROW]), jnp.float32(7), jnp.int32(6))
    assert both.segment_BS.tolist() == [[0, 0, 0, 0, 4, 4, 6, 6, 6, 9, 10, 10, 12]]


def test_a_documents_last_token_is_not_asked_for_the_next_ones_first():
    targets = documents.prediction_targets(jnp.asarray([ROW]), mask)
    assert targets.tolist() == [[11, 5, 7, -1, 2, 2, 4, 7, -1, -1, 8, 1]]
    assert documents.prediction_targets(jnp.asarray([ROW]), DocumentEnds(length=jnp.int32(4))).tolist() == [ROW[1:]]


@functools.cache
def model(position, kind, n_kv_heads=4):
    return shape(position=position, n_kv_heads=n_kv_heads, vocab_size=13, seq_len=12, attention=kind)


def losses(of, params, x_BSD, targets_BS, packed):
    """Loss of each token [B, S] from the residual stream before the first block."""
    split = SplitTokens(targets_BS, targets_BS, packed)
    pieces = transformer.make_pieces(of, FP32, split, lambda params, *last: last)._replace(enter=lambda params: x_BSD)
    y_BSD, head_DV = run_pieces(of, pieces, params)[0]
    log_p = jax.nn.log_softmax(y_BSD @ head_DV)
    log_likelihoods = jnp.take_along_axis(log_p, jnp.maximum(targets_BS, 0)[..., None], axis=-1)[..., 0]
    return -jnp.where(targets_BS >= 0, log_likelihoods, 0.0)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Three blocks of five tokens for a sequence of twelve."""
    monkeypatch.setattr(blockwise, "CPU_BLOCK", 5)


@functools.cache
def derivatives(position, kind, n_kv_heads):
    """(loss of each token [S], norm of its gradient with respect to each token's embedding [S, S]) of ROW."""
    of = model(position, kind, n_kv_heads)
    params = random_params(of)
    inputs, targets, packed = documents.split_inputs_targets(jnp.asarray([ROW]), mask)

    def each(x_SD):
        nats = losses(of, params, x_SD[None], targets, packed)[0]
        return nats, nats

    x_SD = transformer.embed_tokens(of, params, inputs, FP32, packed)[0]
    jacobian, nats = jax.jit(jax.jacrev(each, has_aux=True))(x_SD)
    return np.asarray(nats), np.abs(np.asarray(jacobian)).max(axis=-1)


CASES = [("rope", kind, 2) for kind in KINDS] + [(position, kind, 4) for position in POSITIONS for kind in KINDS]
# Cases that stay in `make test-rest`, each in one of the two tests below: both compare what a document sees of others.
BY_GRADIENT = {("rope", "xla", 2), ("rope", "plain", 4), ("rope", "blockwise", 4), ("learned", "blockwise", 4),
               ("relative", "xla", 4)}  # fmt: skip
BY_LOSS = {("rope", "blockwise", 2), ("rope", "xla", 4), ("relative", "plain", 4), ("relative", "blockwise", 4),
           ("none", "blockwise", 4)}  # fmt: skip


@pytest.mark.parametrize(
    ("position", "kind", "n_kv_heads"), one_in(16, others_slow(lambda *case: case in {CASES[0], *BY_GRADIENT}, CASES))
)
def test_no_token_of_another_document_and_no_future_one_has_a_gradient(position, kind, n_kv_heads):
    _, gradient = derivatives(position, kind, n_kv_heads)
    document = np.searchsorted(STARTS, np.arange(12), side="right")
    own = (document[:, None] == document) & np.tri(12, dtype=bool)
    assert (gradient[~own] == 0).all()  # exactly
    predicted = np.asarray(ROW[:-1]) != SEPARATOR
    assert (gradient[own & predicted[:, None]] > 0).all() and (gradient[~predicted] == 0).all()


@pytest.mark.full
@pytest.mark.parametrize(
    ("position", "kind", "n_kv_heads"), others_slow(lambda *case: case in {CASES[0], *BY_LOSS}, CASES)
)
def test_a_packed_document_is_worth_what_it_is_worth_alone(position, kind, n_kv_heads):
    actual, _ = derivatives(position, kind, n_kv_heads)
    of = model(position, kind, n_kv_heads)
    params = random_params(of)
    for start, end in zip(STARTS, [*STARTS[1:], 13], strict=True):
        alone = np.asarray(ROW[start:end])
        if len(alone) > 1:
            log_p = jax.nn.log_softmax(transformer.next_token_logits(of, params, jnp.asarray(alone[None, :-1])))
            expected = -np.asarray(log_p)[0, np.arange(len(alone) - 1), alone[1:]]
            np.testing.assert_allclose(actual[start : end - 1], expected, atol=logit_error(of, log_p))


@functools.cache
def setting(**changes):
    """A step's (static, hparams) at documents=mask."""
    config = base.get_config()
    config.model = base.llama(32, 2, 4)
    values = {"model.vocab_size": 13, "model.seq_len": 12, "train.global_batch": 4, "data.documents": "mask"}
    values |= {"optim.peak_lr": 1e-3} | changes
    config = config_lib.resolve(config_lib.override(config, values))
    h = config_lib.replace_hparams(config_lib.hparams(config), {"dataset.separator": SEPARATOR})
    return config_lib.static(config), jax.tree.map(jnp.float32, h)


@functools.cache
def batch():
    tokens = np.random.default_rng(0).choice(13, (4, 13), p=[0.04] * 7 + [0.52] + [0.04] * 5)
    tokens[1, 6:] = tokens[2, 3:5] = -1
    tokens[0] = ROW
    return tokens


of_step = jax.jit(compute_gradients, static_argnums=0)


def step_gradients(static, h, params, tokens):
    return of_step(static, params, jnp.asarray(tokens), jnp.float32(0.1), ends=document_ends(static, h))


@pytest.mark.full
def test_micro_batches_and_padding_don_t_change_the_step():
    static, h = setting()
    params, tokens = random_params(static.model), batch()
    sums, grads = step_gradients(static, h, params, tokens)
    assert sums.tokens == ((tokens[:, 1:] >= 0) & (tokens[:, :-1] >= 0) & (tokens[:, :-1] != SEPARATOR)).sum()
    parts, in_parts = step_gradients(dataclasses.replace(static, accumulate=2), h, params, tokens)
    assert distance(parts, sums) < 1e-6 and distance(in_parts, grads) < 2e-6
    empty = np.concatenate([tokens, np.full_like(tokens, -1)])  # rows with nothing in them
    more, with_empty = step_gradients(static, h, params, empty)
    assert distance(more, sums) < 1e-6 and distance(with_empty, grads) < 2e-6
    cross, _ = step_gradients(dataclasses.replace(static, documents="cross"), h, params, tokens)
    assert cross.tokens == (tokens[:, 1:] >= 0).sum() and cross.nll != sums.nll


def test_a_batch_of_padding_has_no_loss_and_no_gradient():
    static, h = setting()
    sums, grads = step_gradients(static, h, random_params(static.model), np.full((4, 13), -1))
    assert sums.tokens == sums.nll == 0
    assert all((np.asarray(g) == 0).all() for g in jax.tree.leaves(grads))


def test_padding_in_between_is_seen_by_no_token():
    static, h = setting()
    params = random_params(static.model)
    sums, grads = step_gradients(static, h, params, [[-1, -1, -1, 3, 11, 5, 9, 2, 7, -1, -1, -1, -1]])
    expected, wanted = step_gradients(static, h, params, [[3, 11, 5, 9, 2, 7] + [-1] * 7])
    assert sums.tokens == expected.tokens == 5
    assert distance(sums, expected) < 1e-6 and distance(grads, wanted) < 2e-6
