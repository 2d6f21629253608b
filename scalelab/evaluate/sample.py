"""Sample text from a run, token by token: greedily, or from the softmax, its top k or its nucleus.

Shapes: B samples of all prompts, T tokens of the longest prompt, C tokens that the cache holds.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from scalelab.data.tokenizers import hf_json
from scalelab.data.tokenizers.tokenizer import Tokenizer
from scalelab.errors import BadInput
from scalelab.evaluate import generate
from scalelab.evaluate.subject import EvaluatedModel

TOKENS_AT_ONCE = 16  # of each sample between two reports of progress
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
    prompt: str | Sequence[str],
    most: int,
    count: int,
    options: SamplingOptions,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[Sample]:
    """Draw `count` samples of at most `most` tokens after each prompt, in the prompts' order, until a document ends.

    All are one batch. Sample i's j-th draw depends on its prompt and (seed, i, j) only, not on the number or length of
    samples and other prompts. BadInput if prompt and samples don't fit the sequences of the model's training, or for an
    empty prompt with a model that never predicts a document's first token (data.documents=mask).
    """
    _check_options(options, most, count)
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    encoded = [_begin_document(model, tokenizer, text, most) for text in prompts]
    # without a cache, padding would be part of a text
    batches = [[ids] for ids in encoded] if generate.keeps_tokens(model.static) else [encoded]
    drawn: list[Sample] = []
    for batch in batches:
        report = _make_report(progress, len(drawn) // count, len(batch), (most, most * len(encoded)))
        drawn += _draw_batch(model, tokenizer, (batch, most, count), options, report)
    return drawn


def _make_report(
    progress: Callable[[int, int], None], before: int, size: int, sizes: tuple[int, int]
) -> Callable[[int], None]:
    """Report a batch of `size` prompts `before` which others are done; `sizes`: tokens of a prompt, and of all."""
    most, whole = sizes
    return lambda done: progress(before * most + size * done, whole)


def _begin_document(model: EvaluatedModel, tokenizer: Tokenizer, prompt: str, most: int) -> np.ndarray:
    """The prompt's ids as a document begins. BadInput where nothing can follow them."""
    before = [] if model.static.masks_documents else [tokenizer.separator]
    ids = np.array([*before, *encode_prompt(tokenizer, prompt)], np.int32)
    room = model.seq_len - len(ids)
    if not len(ids):
        raise BadInput("--prompt is empty, and a document's first token is never predicted in this run's data")
    if most > room:
        near = f"--tokens={room}" if room > 0 else f"a prompt {1 - room} tokens shorter"
        raise BadInput(
            f"a prompt of {len(ids)} tokens and --tokens={most}: the model reads {model.seq_len}; nearest: {near}"
        )
    return ids


def _draw_batch(
    model: EvaluatedModel,
    tokenizer: Tokenizer,
    work: tuple[list[np.ndarray], int, int],
    options: SamplingOptions,
    report: Callable[[int], None],
) -> list[Sample]:
    """Samples of the prompts, most tokens and count in `work`, in the prompts' order."""
    prompts, most, count = work
    ids_BT, first_B = generate.pad_prompts([ids for ids in prompts for _ in range(count)])
    length, separator = generate.cache_length(model.static, ids_BT.shape[1] + most), np.int32(tokenizer.separator)
    restricted = bool(options.top_k or options.top_p < 1)
    rules = generate.Rules(tokenizer.vocab_size, options.temperature == 0, restricted)
    draws = generate.Draws(**options._asdict(), draw_B=np.tile(np.arange(count), len(prompts)))
    params = generate.arrange_params(model.static, model.params)
    texts, done = generate.begin(model.static, length, params, ids_BT, first_B, separator), 0
    while done < most and not texts.done_B.all():
        done = min(done + TOKENS_AT_ONCE, most)
        texts = generate.go_on(model.static, rules, params, texts, np.int32(done), separator, draws)
        report(done)
    rows = zip(np.asarray(texts.ids_BC), np.asarray(texts.nats_BC, np.float64), strict=True)
    return [_cut_at_end(ids, nats, tokenizer.separator, int(texts.drawn)) for ids, nats in rows]


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> np.ndarray:
    """Encode the prompt as ids; a special token that it spells is that token (`hf_json.spelled_tokens`).

    BadInput if it is not valid text or the tokenizer refuses it.
    """
    try:
        if hf_json.spelled_tokens(tokenizer, prompt):
            return hf_json.encode_spelled(tokenizer, prompt)
        return tokenizer.encode(prompt.encode())
    except ValueError as error:
        raise BadInput(f"--prompt={prompt[:40]!r} can't be encoded: {error}") from error


def default_tokens(model: EvaluatedModel, tokenizer: Tokenizer, *prompts: str) -> int:
    """Default number of new tokens: DEFAULT_TOKENS, or as many as the model's length leaves the longest prompt."""
    longest = max(len(encode_prompt(tokenizer, prompt)) for prompt in prompts)
    return max(1, min(DEFAULT_TOKENS, model.seq_len - 1 - longest))


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
