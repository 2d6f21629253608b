"""Sample text from a run, token by token: greedily, or from the softmax, its top k or its nucleus.

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
from scalelab.model import decode, transformer
from scalelab.model.attention import documents
from scalelab.precision.policy import POLICIES
from scalelab.precision.products import product_precision

DEFAULT_TOKENS = 100


class SamplingOptions(NamedTuple):
    """Options for choosing a token. `temperature` 0: the likeliest. Else it is drawn from softmax(logits / temperature)
    over the `top_k` likeliest (0: all), and of these over the fewest that hold `top_p` of the probability (Holtzman et
    al. 2020).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


class Sample(NamedTuple):
    """Sampled ids after the prompt; `ended`: by a separator, which only `nats` (at temperature 1) includes."""

    ids: list[int]
    ended: bool
    nats: float


def draw_samples(
    model: EvaluatedModel,
    tokenizer: Tokenizer,
    prompt: str,
    most: int,
    count: int,
    options: SamplingOptions,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[Sample]:
    """Draw `count` samples of at most `most` tokens after `prompt`, each until a document ends.

    Sample i's j-th draw depends on (seed, i, j) only, not on the number or length of samples. BadInput if prompt and
    samples don't fit the sequences of the model's training, or for an empty prompt with a model that never predicts a
    document's first token (data.documents=mask).
    """
    _check_options(options, most, count)
    before = [] if model.static.masks_documents else [tokenizer.separator]
    prompt_ids = np.array([*before, *encode_prompt(tokenizer, prompt)], np.int32)
    room = model.seq_len - len(prompt_ids)
    if not len(prompt_ids):
        raise BadInput("--prompt is empty, and a document's first token is never predicted in this run's data")
    if most > room:
        near = f"--tokens={room}" if room > 0 else f"a prompt {1 - room} tokens shorter"
        raise BadInput(
            f"a prompt of {len(prompt_ids)} tokens and --tokens={most}: the model reads {model.seq_len}; "
            f"nearest: {near}"
        )
    begin, follow = _program(model, count, tokenizer.separator)
    logits_BV, state = begin(jnp.tile(prompt_ids, (count, 1)))
    ids = np.zeros((count, most), np.int32)
    nats = np.zeros((count, most))
    done_B = np.zeros(count, bool)
    for i in range(most):
        chosen_B, nats_B = _choose_tokens(logits_BV, np.int32(i), tokenizer.vocab_size, **options._asdict())
        ids[:, i], nats[:, i] = chosen_B, nats_B
        done_B |= ids[:, i] == tokenizer.separator
        progress(i + 1, most)
        if done_B.all() or i + 1 == most:
            break
        logits_BV, state = follow(chosen_B, state)
    return [_cut_at_end(*row, tokenizer.separator, i + 1) for row in zip(ids, nats, strict=True)]


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> np.ndarray:
    """Encode the prompt as ids. BadInput if it is not valid text or the tokenizer refuses it."""
    try:
        return tokenizer.encode(prompt.encode())
    except ValueError as error:
        raise BadInput(f"--prompt={prompt[:40]!r} can't be encoded: {error}") from error


def default_tokens(model: EvaluatedModel, tokenizer: Tokenizer, prompt: str) -> int:
    """Default number of new tokens: DEFAULT_TOKENS, or as many as the model's length leaves."""
    return max(1, min(DEFAULT_TOKENS, model.seq_len - 1 - len(encode_prompt(tokenizer, prompt))))


def decode_sample(tokenizer: Tokenizer, sample: Sample) -> str:
    """Decode a sample's text; bytes that are not UTF-8 become the replacement character."""
    return tokenizer.decode(sample.ids).decode(errors="replace")


def _check_options(options: SamplingOptions, most: int, count: int) -> None:
    ranges = {"temperature": (0, 100), "top_k": (0, 2**31), "top_p": (0, 1), "seed": (0, 2**31 - 1)}
    for name, (low, high) in ranges.items():
        value = getattr(options, name)
        if not low <= value <= high or (name == "top_p" and value == 0):
            option = f"--{name.replace('_', '-')}"
            raise BadInput(f"{option}={value} is outside {'(' if name == 'top_p' else '['}{low}, {high}]")
    if most < 1 or count < 1:
        raise BadInput(f"{count} samples of {most} tokens are none; at least --n=1 --tokens=1")


def _cut_at_end(ids: np.ndarray, nats: np.ndarray, separator: int, drawn: int) -> Sample:
    ends = np.flatnonzero(ids[:drawn] == separator)
    size = int(ends[0]) if len(ends) else drawn
    return Sample(ids[:size].tolist(), bool(len(ends)), float(nats[: size + bool(len(ends))].sum()))


@functools.partial(jax.jit, static_argnames="vocab_size")
def _choose_tokens(
    logits_BV: jax.Array,
    at: jax.Array,
    vocab_size: int,
    temperature: jax.Array,
    top_k: jax.Array,
    top_p: jax.Array,
    seed: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Choose the next token of each sample: (ids [B], nats [B]). Ids from `vocab_size` on, without text, never are."""
    logits_BV = jnp.where(jnp.arange(logits_BV.shape[1])[None] < vocab_size, logits_BV, -jnp.inf)
    logs_BV = jax.nn.log_softmax(logits_BV)
    allowed_BV = _restrict_logits(logits_BV / jnp.where(temperature > 0, temperature, 1.0), top_k, top_p)
    root = jax.random.fold_in(jax.random.key(seed), at)
    keys_B = jax.vmap(lambda i: jax.random.fold_in(root, i))(jnp.arange(logits_BV.shape[0]))
    drawn_B = jax.vmap(jax.random.categorical)(keys_B, allowed_BV)
    chosen_B = jnp.where(temperature > 0, drawn_B, logits_BV.argmax(axis=-1))
    return chosen_B, -jnp.take_along_axis(logs_BV, chosen_B[:, None], axis=-1)[:, 0]


def _restrict_logits(logits_BV: jax.Array, top_k: jax.Array, top_p: jax.Array) -> jax.Array:
    """Set logits outside the `top_k` likeliest, or outside the nucleus of these, to -inf; the likeliest stays."""
    order_BV = jnp.argsort(-logits_BV, axis=-1)
    ranked_BV = jnp.take_along_axis(logits_BV, order_BV, axis=-1)
    rank_V = jnp.arange(logits_BV.shape[1])
    ranked_BV = jnp.where(((top_k == 0) | (rank_V < top_k))[None], ranked_BV, -jnp.inf)
    p_BV = jax.nn.softmax(ranked_BV)
    before_BV = jnp.cumsum(p_BV, axis=-1) - p_BV  # probability of all likelier tokens
    ranked_BV = jnp.where((before_BV < top_p) | (rank_V == 0)[None], ranked_BV, -jnp.inf)
    return jnp.take_along_axis(ranked_BV, jnp.argsort(order_BV, axis=-1), axis=-1)


def _program(model: EvaluatedModel, count: int, separator: int) -> tuple[Callable, Callable]:
    """begin(tokens_BT) -> (logits of the next token [B, V], state); follow(tokens_B, state) -> both, one token later.

    The state is a KV cache as long as the model's sequences: a prompt of another length recompiles only `begin`. A
    user's block may mix tokens outside of attention, which the cache does not hold: its state is all tokens.
    """
    ends = jnp.int32(separator) if model.static.masks_documents else None
    if ":" in model.static.model.block:
        return _whole_program(model, count, ends)
    cache = decode.empty_cache(model.static.model, count, model.seq_len, POLICIES[model.static.precision])

    def begin(tokens_BT: jax.Array) -> tuple[jax.Array, Any]:
        return _extend(model.static, model.params, tokens_BT, cache, ends)

    def follow(tokens_B: jax.Array, cache: Any) -> tuple[jax.Array, Any]:
        return _extend(model.static, model.params, tokens_B[:, None], cache, ends)

    return begin, follow


@functools.partial(jax.jit, static_argnums=0)
def _extend(static: Static, params: Any, tokens_BT: jax.Array, cache: Any, ends: Any) -> tuple[jax.Array, Any]:
    policy = POLICIES[static.precision]
    with product_precision(policy):
        logits_BTV, cache = decode.decode_tokens(static.model, params, tokens_BT, cache, policy, ends)
    return logits_BTV[:, -1], cache


def _whole_program(model: EvaluatedModel, count: int, ends: Any) -> tuple[Callable, Callable]:
    """`_program` without a cache: every token is computed from all tokens so far (later ones change no logits)."""

    def begin(tokens_BT: jax.Array) -> tuple[jax.Array, Any]:
        filled = tokens_BT.shape[1]
        ids_BS = jnp.zeros((count, model.seq_len), jnp.int32).at[:, :filled].set(tokens_BT)
        return _logits_at(model.static, model.params, ids_BS, filled - 1, ends), (ids_BS, filled)

    def follow(tokens_B: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        ids_BS, filled = state
        ids_BS = ids_BS.at[:, filled].set(tokens_B)
        return _logits_at(model.static, model.params, ids_BS, filled, ends), (ids_BS, filled + 1)

    return begin, follow


@functools.partial(jax.jit, static_argnums=0)
def _logits_at(static: Static, params: Any, ids_BS: jax.Array, at: jax.Array, ends: Any) -> jax.Array:
    policy = POLICIES[static.precision]
    packed = None if ends is None else documents.document_segments(ids_BS, ends)
    with product_precision(policy):
        return transformer.next_token_logits(static.model, params, ids_BS, policy, packed)[:, at]
