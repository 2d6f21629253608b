"""Logits from a cache are those of the whole sequence at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.model import decode, transformer
from scalelab.model.attention.documents import document_segments
from scalelab.model.pieces import MAX_UNROLLED_LAYERS
from scalelab.precision.policy import FP32, POLICIES
from tests.model.shapes import logit_error, random_params, shape, tokens
from tests.quick import one_in

extend = jax.jit(decode.decode_tokens, static_argnums=(0, 4))

MODELS = {
    "rope, grouped": {"n_kv_heads": 2, "qk_norm": True},
    "learned": {"position": "learned", "norm": "layernorm", "bias": True, "tied_head": True},
    "relative": {"position": "relative"},
    "none": {"position": "none", "logit_softcap": 5.0},
}


@functools.cache
def setting(name):
    of = shape(**MODELS[name])
    return of, random_params(of), tokens(of)[:, :-1]


def in_pieces(of, params, tokens_BS, sizes, policy=FP32, separator=None):
    """Logits [B, S, V], with so many tokens at a time from a cache that is longer than needed."""
    cache, pieces, start = decode.empty_cache(of, tokens_BS.shape[0], sum(sizes), policy), [], 0
    for size in sizes:
        logits, cache = extend(
            of, params, tokens_BS[:, start : start + size], cache, policy, decode.DocumentStarts(separator)
        )
        pieces.append(logits)
        start += size
        if start == tokens_BS.shape[1]:
            break
    assert cache.filled == start
    return np.concatenate(pieces, axis=1)


@pytest.mark.parametrize("name", one_in(4, MODELS))
@pytest.mark.parametrize("separator", [pytest.param(None, marks=pytest.mark.slow), 5])
def test_logits_are_those_of_the_training_forward(name, separator):
    """A prompt of seven tokens, then one at a time; with a separator each document begins anew."""
    of, params, given = setting(name)
    given = given.at[0, 3].set(5).at[1, 8].set(5).at[0, 9].set(5)
    packed = None if separator is None else document_segments(given, separator)
    expected = transformer.next_token_logits(of, params, given, packed=packed)
    logits = in_pieces(of, params, given, [7, *[1] * 5], separator=separator)
    np.testing.assert_allclose(logits, expected, atol=logit_error(of, expected))


UNEQUAL = {"n_layers": 3, "window": 3, "global_every": 2, "nope_every": 3}  # each layer has flags of its own


@pytest.mark.full
def test_a_list_of_layers_gives_the_logits_of_the_stack():
    """Each layer with its own parameters, cache and flags; sampling on CPU decodes so."""
    of = shape(**UNEQUAL)
    params, given = random_params(of), tokens(of)[:, :-1]
    split = decode.by_layer(of, params)
    assert isinstance(split, decode.LayerList) and len(split.layers) == 3 and "blocks" not in split.outside
    expected = transformer.next_token_logits(of, params, given)
    atol = logit_error(of, expected)
    np.testing.assert_allclose(in_pieces(of, split, given, [7, *[1] * 5]), expected, atol=atol)


def test_a_deep_model_stays_stacked():
    of = shape(n_layers=MAX_UNROLLED_LAYERS + 1)
    params = random_params(of)
    assert decode.by_layer(of, params) is params


@pytest.mark.slow
def test_a_longer_cache_and_larger_pieces_make_no_difference():
    of, params, given = setting("rope, grouped")
    expected = transformer.next_token_logits(of, params, given)
    atol = logit_error(of, expected)
    np.testing.assert_allclose(in_pieces(of, params, given, [5, 1, 6, 9]), expected, atol=atol)


@pytest.mark.full
def test_bf16_keeps_keys_in_bf16():
    of, params, given = setting("rope, grouped")
    assert decode.empty_cache(of, 2, 12, POLICIES["bf16"]).keys["k"].dtype == jnp.bfloat16
    expected = np.asarray(transformer.next_token_logits(of, params, given, POLICIES["bf16"]))
    logits = in_pieces(of, params, given, [7, *[1] * 5], POLICIES["bf16"])
    assert np.abs(logits - expected).max() < 0.03 * np.abs(expected).max()


def test_learned_positions_end_where_the_model_has_no_more():
    with pytest.raises(BadInput, match="13 tokens: the model has learned positions"):
        decode.empty_cache(shape(position="learned"), 1, 13)
    assert decode.empty_cache(shape(), 1, 13).filled == 0
