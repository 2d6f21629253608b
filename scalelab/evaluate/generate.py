"""Tokens drawn one after another in one compiled loop, for a batch of texts of several lengths.

Shapes: B texts, T tokens of the longest prompt, C the cache's length, V vocab.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.config import Static
from scalelab.model import decode, transformer
from scalelab.model.attention import documents
from scalelab.precision.policy import POLICIES
from scalelab.precision.products import product_precision

CACHE_STEP = 64  # tokens by which the cache's length grows, so that few lengths are compiled
PADDING = 0  # any id: what stands before a text changes nothing in it


class Draws(NamedTuple):
    """How tokens are drawn, in traced numbers; `draw_B`: the number of each text's sample, which decides its draws."""

    temperature: Any
    top_k: Any
    top_p: Any
    seed: Any
    draw_B: Any


class Rules(NamedTuple):
    """What decides the program: ids from `vocab_size` on are never drawn; a text `greedy`, or from a part of V."""

    vocab_size: int
    greedy: bool
    restricted: bool


class Texts(NamedTuple):
    """Texts on their way: the logits of the next token, what the model keeps of those before, and what was drawn."""

    logits_BV: jax.Array
    past: Any  # `decode.KVCache`, or without a cache all tokens and their number
    ids_BC: jax.Array
    nats_BC: jax.Array
    done_B: jax.Array
    drawn: jax.Array


def pad_prompts(prompts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(ids [B, T] with padding in front, index of each prompt's first token [B])."""
    longest = max(map(len, prompts))
    first_B = np.array([longest - len(ids) for ids in prompts], np.int32)
    return np.stack([np.pad(ids, (longest - len(ids), 0), constant_values=PADDING) for ids in prompts]), first_B


def cache_length(static: Static, tokens: int) -> int:
    """The length of a cache for so many tokens."""
    return min(static.model.seq_len, -(-tokens // CACHE_STEP) * CACHE_STEP)


def arrange_params(static: Static, params: Any) -> Any:
    """The parameters as `begin` and `go_on` read them fastest (`decode.by_layer`)."""
    return params if keeps_tokens(static) else decode.by_layer(static.model, params)


@functools.partial(jax.jit, static_argnums=(0, 1))
def begin(
    static: Static, length: int, params: Any, ids_BT: jax.Array, first_B: jax.Array, separator: jax.Array
) -> Texts:
    """The texts after their prompts, with a cache of `length` tokens.

    A user's block may mix tokens outside of attention, which the cache does not hold: there all tokens are kept.
    """
    count, policy = ids_BT.shape[0], POLICIES[static.precision]
    past: Any
    if keeps_tokens(static):
        past_BC = jnp.zeros((count, length), jnp.int32)
        logits_BV, past = _extend_tokens(static, params, ids_BT, (past_BC, jnp.int32(0)), separator)
    else:
        cache = decode.empty_cache(static.model, count, length, policy)
        logits_BV, past = _extend_cache(static, params, ids_BT, cache, separator, first_B)
    empty_BC = jnp.zeros((count, length))
    return Texts(logits_BV, past, empty_BC.astype(jnp.int32), empty_BC, jnp.zeros(count, bool), jnp.int32(0))


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def go_on(
    static: Static, rules: Rules, params: Any, texts: Texts, most: jax.Array, separator: jax.Array, draws: Draws
) -> Texts:
    """The texts with up to `most` drawn tokens each in all; fewer where all have ended."""

    def unfinished(texts: Texts) -> jax.Array:
        return (texts.drawn < most) & ~texts.done_B.all()

    def draw(texts: Texts) -> Texts:
        chosen_B, nats_B = choose_tokens(texts.logits_BV, texts.drawn, rules, draws)
        extend = _extend_tokens if keeps_tokens(static) else _extend_cache
        logits_BV, past = extend(static, params, chosen_B[:, None], texts.past, separator)
        put = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=texts.drawn, axis=1)
        ids_BC, nats_BC = put(texts.ids_BC, chosen_B[:, None]), put(texts.nats_BC, nats_B[:, None])
        return Texts(logits_BV, past, ids_BC, nats_BC, texts.done_B | (chosen_B == separator), texts.drawn + 1)

    return jax.lax.while_loop(unfinished, draw, texts)


def keeps_tokens(static: Static) -> bool:
    """Whether the model has a block of the user's own, for which there is no cache."""
    return ":" in static.model.block


def _extend_cache(
    static: Static,
    params: Any,
    tokens_BT: jax.Array,
    cache: decode.KVCache,
    separator: jax.Array,
    first_B: jax.Array | None = None,
) -> tuple[jax.Array, decode.KVCache]:
    """The logits after these tokens [B, V], and the cache with them."""
    policy = POLICIES[static.precision]
    starts = decode.DocumentStarts(separator if static.masks_documents else None, first_B)
    with product_precision(policy):
        logits_BTV, cache = decode.decode_tokens(static.model, params, tokens_BT, cache, policy, starts)
    return logits_BTV[:, -1], cache


def _extend_tokens(
    static: Static, params: Any, tokens_BT: jax.Array, past: tuple[jax.Array, jax.Array], separator: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Like `_extend_cache`, but computed from all tokens so far each time (later ones change no logits)."""
    ids_BC, filled = past
    ids_BC = jax.lax.dynamic_update_slice_in_dim(ids_BC, tokens_BT.astype(jnp.int32), filled, axis=1)
    filled = filled + tokens_BT.shape[1]
    policy = POLICIES[static.precision]
    packed = documents.document_segments(ids_BC, separator) if static.masks_documents else None
    with product_precision(policy):
        logits_BCV = transformer.next_token_logits(static.model, params, ids_BC, policy, packed)
    return jax.lax.dynamic_index_in_dim(logits_BCV, filled - 1, axis=1, keepdims=False), (ids_BC, filled)


def choose_tokens(logits_BV: jax.Array, drawn: jax.Array, rules: Rules, draws: Draws) -> tuple[jax.Array, jax.Array]:
    """Choose the next token of each text: (ids [B], nats [B]). Ids from `rules.vocab_size` on never are."""
    logits_BV = jnp.where(jnp.arange(logits_BV.shape[1])[None] < rules.vocab_size, logits_BV, -jnp.inf)
    if rules.greedy:
        chosen_B = logits_BV.argmax(axis=-1)
    else:
        allowed_BV = logits_BV / draws.temperature
        if rules.restricted:
            allowed_BV = restrict_logits(allowed_BV, draws.top_k, draws.top_p)
        root = jax.random.fold_in(jax.random.key(draws.seed), drawn)
        keys_B = jax.vmap(lambda i: jax.random.fold_in(root, i))(draws.draw_B)
        chosen_B = jax.vmap(jax.random.categorical)(keys_B, allowed_BV)
    picked_B = jnp.take_along_axis(logits_BV, chosen_B[:, None], axis=-1)[:, 0]
    return chosen_B.astype(jnp.int32), jax.nn.logsumexp(logits_BV, axis=-1) - picked_B


def restrict_logits(logits_BV: jax.Array, top_k: jax.Array, top_p: jax.Array) -> jax.Array:
    """Set logits outside the `top_k` likeliest, or outside the nucleus of these, to -inf; the likeliest stays."""
    order_BV = jnp.argsort(-logits_BV, axis=-1)
    ranked_BV = jnp.take_along_axis(logits_BV, order_BV, axis=-1)
    rank_V = jnp.arange(logits_BV.shape[1])
    ranked_BV = jnp.where(((top_k == 0) | (rank_V < top_k))[None], ranked_BV, -jnp.inf)
    p_BV = jax.nn.softmax(ranked_BV)
    before_BV = jnp.cumsum(p_BV, axis=-1) - p_BV  # probability of all likelier tokens
    ranked_BV = jnp.where((before_BV < top_p) | (rank_V == 0)[None], ranked_BV, -jnp.inf)
    return jnp.take_along_axis(ranked_BV, jnp.argsort(order_BV, axis=-1), axis=-1)
