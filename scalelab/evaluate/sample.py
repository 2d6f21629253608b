"""Text from a run, token by token: greedy, or drawn from the softmax, its head or its nucleus.

Shapes: B samples, T tokens of the prompt, V vocab.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scalelab.config import Static
from scalelab.data.tokenizers.tokenizer import Tokenizer
from scalelab.errors import BadInput
from scalelab.evaluate.subject import EvaluatedModel
from scalelab.model import decode
from scalelab.precision.policy import POLICIES
from scalelab.precision.products import product_precision


class SamplingOptions(NamedTuple):
    """How a token is chosen. `temperature` 0: the likeliest one. Else from softmax(logits / temperature), of the `top_k`
    likeliest (0: all), and of these from the fewest that hold `top_p` of the probability (Holtzman et al. 2020)."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


class Sample(NamedTuple):
    """What followed the prompt, without the separator; `ended`: with one. `nats` is its cost under the model (temperature 1)."""

    ids: list[int]
    ended: bool
    nats: float


def draw_samples(
    of: EvaluatedModel, tokenizer: Tokenizer, prompt: str, most: int, count: int, choice: SamplingOptions,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[Sample]:  # fmt: skip
    """`count` samples of at most `most` tokens after `prompt`, each until a document ends.

    Sample i's j-th draw depends on (seed, i, j) only: not on how many or how long samples are. BadInput where prompt and
    samples don't fit the sequences that the model was trained on, or where a model that never predicts a document's first
    token (data.documents=mask) is given no prompt.
    """
    _check(choice, most, count)
    before = [] if of.static.documents == "mask" else [tokenizer.separator]
    begun = np.array([*before, *encode_prompt(tokenizer, prompt)], np.int32)
    room = of.seq_len - len(begun)
    if not len(begun):
        raise BadInput("--prompt is empty, and a document's first token is never predicted in this run's data")
    if most > room:
        near = f"--tokens={room}" if room > 0 else f"a prompt {1 - room} tokens shorter"
        raise BadInput(
            f"a prompt of {len(begun)} tokens and --tokens={most}: the model reads {of.seq_len}; nearest: {near}"
        )
    begin, follow = _program(of, count, tokenizer.separator)
    logits_BV, state = begin(jnp.tile(begun, (count, 1)))
    ids = np.zeros((count, most), np.int32)
    nats = np.zeros((count, most))
    done_B = np.zeros(count, bool)
    for i in range(most):
        chosen_B, cost_B = _choose(logits_BV, np.int32(i), tokenizer.vocab_size, **choice._asdict())
        ids[:, i], nats[:, i] = chosen_B, cost_B
        done_B |= ids[:, i] == tokenizer.separator
        progress(i + 1, most)
        if done_B.all() or i + 1 == most:
            break
        logits_BV, state = follow(chosen_B, state)
    return [_cut(*row, tokenizer.separator, i + 1) for row in zip(ids, nats, strict=True)]


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> np.ndarray:
    """The prompt's ids. BadInput where it is no text, or none that the tokenizer takes."""
    try:
        return tokenizer.encode(prompt.encode())
    except ValueError as error:
        raise BadInput(f"--prompt={prompt[:40]!r} can't be encoded: {error}") from error


def _check(choice: SamplingOptions, most: int, count: int) -> None:
    ranges = {"temperature": (0, 100), "top_k": (0, 2**31), "top_p": (0, 1), "seed": (0, 2**31 - 1)}
    for name, (low, high) in ranges.items():
        value = getattr(choice, name)
        if not low <= value <= high or (name == "top_p" and value == 0):
            option = f"--{name.replace('_', '-')}"
            raise BadInput(f"{option}={value} is outside {'(' if name == 'top_p' else '['}{low}, {high}]")
    if most < 1 or count < 1:
        raise BadInput(f"{count} samples of {most} tokens are none; at least --n=1 --tokens=1")


def _cut(ids: np.ndarray, nats: np.ndarray, separator: int, taken: int) -> Sample:
    ends = np.flatnonzero(ids[:taken] == separator)
    size = int(ends[0]) if len(ends) else taken
    return Sample(ids[:size].tolist(), bool(len(ends)), float(nats[: size + bool(len(ends))].sum()))


@functools.partial(jax.jit, static_argnames="vocab_size")
def _choose(
    logits_BV: jax.Array, at: jax.Array, vocab_size: int, temperature: jax.Array, top_k: jax.Array, top_p: jax.Array,
    seed: jax.Array,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """(the next token of each sample, its nats). Ids from `vocab_size` on stand for no text and are never chosen."""
    logits_BV = jnp.where(jnp.arange(logits_BV.shape[1])[None] < vocab_size, logits_BV, -jnp.inf)
    logs_BV = jax.nn.log_softmax(logits_BV)
    allowed_BV = _allowed(logits_BV / jnp.where(temperature > 0, temperature, 1.0), top_k, top_p)
    root = jax.random.fold_in(jax.random.key(seed), at)
    keys_B = jax.vmap(lambda i: jax.random.fold_in(root, i))(jnp.arange(logits_BV.shape[0]))
    drawn_B = jax.vmap(jax.random.categorical)(keys_B, allowed_BV)
    chosen_B = jnp.where(temperature > 0, drawn_B, logits_BV.argmax(axis=-1))
    return chosen_B, -jnp.take_along_axis(logs_BV, chosen_B[:, None], axis=-1)[:, 0]


def _allowed(logits_BV: jax.Array, top_k: jax.Array, top_p: jax.Array) -> jax.Array:
    """The logits, -inf where neither among the `top_k` likeliest nor in the nucleus of these; the likeliest always stays."""
    order_BV = jnp.argsort(-logits_BV, axis=-1)
    ranked_BV = jnp.take_along_axis(logits_BV, order_BV, axis=-1)
    rank_V = jnp.arange(logits_BV.shape[1])
    ranked_BV = jnp.where(((top_k == 0) | (rank_V < top_k))[None], ranked_BV, -jnp.inf)
    p_BV = jax.nn.softmax(ranked_BV)
    before_BV = jnp.cumsum(p_BV, axis=-1) - p_BV  # what the likelier ones hold
    ranked_BV = jnp.where((before_BV < top_p) | (rank_V == 0)[None], ranked_BV, -jnp.inf)
    return jnp.take_along_axis(ranked_BV, jnp.argsort(order_BV, axis=-1), axis=-1)


def _program(of: EvaluatedModel, count: int, separator: int) -> tuple[Callable, Callable]:
    """begin(tokens_BT) -> (logits of what follows [B, V], state); follow(tokens_B, state) -> the same one token on.

    The state is a cache of keys and values as long as the model's sequences: a prompt of another length compiles `begin` again,
    nothing else.
    """
    ends = jnp.int32(separator) if of.static.documents == "mask" else None
    cache = decode.empty_cache(of.static.model, count, of.seq_len, POLICIES[of.static.precision])

    def begin(tokens_BT: jax.Array) -> tuple[jax.Array, Any]:
        return _extend(of.static, of.params, tokens_BT, cache, ends)

    def follow(tokens_B: jax.Array, cache: Any) -> tuple[jax.Array, Any]:
        return _extend(of.static, of.params, tokens_B[:, None], cache, ends)

    return begin, follow


@functools.partial(jax.jit, static_argnums=0)
def _extend(static: Static, params: Any, tokens_BT: jax.Array, cache: Any, ends: Any) -> tuple[jax.Array, Any]:
    policy = POLICIES[static.precision]
    with product_precision(policy):
        logits_BTV, cache = decode.decode_tokens(static.model, params, tokens_BT, cache, policy, ends)
    return logits_BTV[:, -1], cache
