"""Sampling: greedy is the training forward's argmax, draws follow the softmax's top k and nucleus, samples end."""

import dataclasses

import numpy as np
import pytest

from scalelab.data.tokenizers.tokenizer import byte_tokenizer
from scalelab.errors import BadInput
from scalelab.evaluate import subject
from scalelab.evaluate.generate import Draws, Rules, choose_tokens, restrict_logits
from scalelab.evaluate.sample import SamplingOptions, draw_samples
from tests.evaluate.runs import loaded, log_softmax, plain
from tests.quick import cross, others_slow

BYTES = byte_tokenizer()
PROMPT = "for i in"


def logits_after(model, ids):
    """Of the plain forward over exactly these ids, in float64."""
    return log_softmax(plain(model.static.model, model.params, np.array([ids], np.int32)))[0, -1]


def test_greedy_is_the_argmax_of_the_training_forward_step_by_step():
    model = loaded()
    (result,) = draw_samples(model, BYTES, PROMPT, 12, 1, SamplingOptions(temperature=0.0))
    ids, nats = [0, *PROMPT.encode()], 0.0
    for token in result.ids[:4]:  # each length is a program of its own
        logs = logits_after(model, ids)
        assert token == logs.argmax()
        nats, ids = nats - logs[token], [*ids, token]
    scored = subject.token_losses(model, np.array([[0, *PROMPT.encode(), *result.ids]]), 0)
    assert scored.nats[0, -12:-8].sum() == pytest.approx(nats, rel=1e-5)
    assert scored.best[0, -12:].all() and scored.nats[0, -12:].sum() == pytest.approx(result.nats, rel=1e-5)


def test_where_documents_are_masked_the_prompt_begins_its_own():
    model = loaded()
    masked = model._replace(static=dataclasses.replace(model.static, documents="mask"))
    (result,) = draw_samples(masked, BYTES, PROMPT, 1, 1, SamplingOptions(temperature=0.0))
    assert result.nats == pytest.approx(-logits_after(model, list(PROMPT.encode())).max(), rel=1e-5)
    with pytest.raises(BadInput, match="--prompt is empty"):
        draw_samples(masked, BYTES, "", 1, 1, SamplingOptions())


GREEDY, DRAWN = SamplingOptions(temperature=0.0), SamplingOptions(seed=3, top_k=20)


@pytest.mark.parametrize(
    ("options", "documents"),
    others_slow(
        lambda options, documents: (options is GREEDY) == (documents == "cross"),
        cross([pytest.param(GREEDY, id="greedy"), pytest.param(DRAWN, id="drawn")], ["cross", "mask"]),
    ),
)
@pytest.mark.full
def test_prompts_of_several_lengths_are_one_batch_and_each_goes_on_as_alone(documents, options):
    """Greedily and drawn; where documents are masked, too, and where the padding is as long as a text."""
    model, prompts = loaded(), ["for i in", "x", "def f(a, b):"]
    model = model._replace(static=dataclasses.replace(model.static, documents=documents))
    together = draw_samples(model, BYTES, prompts, 8, 2, options)
    alone = [one for prompt in prompts for one in draw_samples(model, BYTES, prompt, 8, 2, options)]
    assert [one.ids for one in together] == [one.ids for one in alone]
    assert [one.nats for one in together] == pytest.approx([one.nats for one in alone], rel=1e-4)


@pytest.mark.slow
def test_the_seed_decides_and_neither_count_nor_length_matter():
    model = loaded()
    five = draw_samples(model, BYTES, PROMPT, 15, 5, SamplingOptions(seed=3))
    assert five == draw_samples(model, BYTES, PROMPT, 15, 5, SamplingOptions(seed=3))
    assert [one.ids for one in draw_samples(model, BYTES, PROMPT, 15, 2, SamplingOptions(seed=3))] == [
        one.ids for one in five[:2]
    ]
    assert [one.ids for one in draw_samples(model, BYTES, PROMPT, 6, 5, SamplingOptions(seed=3))] == [
        one.ids[:6] for one in five
    ]
    assert len({tuple(one.ids) for one in five}) == 5
    assert draw_samples(model, BYTES, PROMPT, 15, 5, SamplingOptions(seed=4)) != five


@pytest.mark.full
def test_it_stops_at_the_separator_which_is_no_text_but_costs():
    model = loaded()
    result = draw_samples(model, BYTES, "", 31, 64, SamplingOptions(temperature=3.0))
    ended = [one for one in result if one.ended]
    assert 0 < len(ended) < 64 and all(0 not in one.ids for one in result)
    assert all(len(one.ids) == 31 for one in result if not one.ended)
    one = ended[0]
    scored = subject.token_losses(model, np.array([[0, *one.ids, 0]]), 0)
    assert one.nats == pytest.approx(scored.nats.sum(), rel=1e-5)


def test_head_and_nucleus_against_numpy():
    logits = np.random.default_rng(0).normal(size=(20, 50)).astype(np.float32) * 2
    for top_k, top_p in ((0, 1.0), (5, 1.0), (1, 1.0), (0, 0.6), (10, 0.5), (0, 1e-6), (500, 0.99)):
        result = np.isfinite(np.asarray(restrict_logits(logits, np.int32(top_k), np.float32(top_p))))
        for row, allowed in zip(logits.astype(np.float64), result, strict=True):
            order = np.argsort(-row)[: top_k or None]
            p = np.exp(row[order]) / np.exp(row[order]).sum()
            wanted = order[: np.searchsorted(np.cumsum(p), top_p) + 1] if top_p < 1 else order
            assert set(np.flatnonzero(allowed)) == set(wanted), (top_k, top_p)


def test_draws_have_the_frequencies_of_the_softmax_at_the_temperature():
    logits, n = np.array([1.0, 0.0, 2.0, -1.0, 5.0], np.float32), 20_000
    rows = np.tile(logits, (n, 1))
    draws = Draws(2.0, 3, 1.0, 0, np.arange(n))
    chosen, nats = choose_tokens(rows, np.int32(0), Rules(4, greedy=False, restricted=True), draws)
    drawn = np.asarray(chosen)  # id 4 stands for no text
    np.testing.assert_allclose(nats, -log_softmax(logits[:4].astype(float))[drawn], rtol=1e-5)
    p = np.exp(logits[:3] / 2) / np.exp(logits[:3] / 2).sum()
    assert set(drawn) == {0, 1, 2}
    np.testing.assert_allclose(np.bincount(drawn) / n, p, atol=4 * np.sqrt(0.25 / n))


MISTAKES = {
    "temperature": (SamplingOptions(temperature=-1.0), 5, 1, r"--temperature=-1.0 is outside \[0, 100\]"),
    "nan": (SamplingOptions(temperature=float("nan")), 5, 1, "--temperature=nan"),
    "top_p": (SamplingOptions(top_p=0.0), 5, 1, r"--top-p=0.0 is outside \(0, 1\]"),
    "top_k": (SamplingOptions(top_k=-2), 5, 1, "--top-k=-2"),
    "seed": (SamplingOptions(seed=-1), 5, 1, "--seed=-1"),
    "none": (SamplingOptions(), 5, 0, "0 samples of 5 tokens"),
    "long": (
        SamplingOptions(),
        24,
        1,
        "a prompt of 9 tokens and --tokens=24: the model reads 32; nearest: --tokens=23",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line(case):
    choice, most, count, message = MISTAKES[case]
    with pytest.raises(BadInput, match=message) as caught:
        draw_samples(loaded(), BYTES, PROMPT, most, count, choice)
    assert "\n" not in str(caught.value)
