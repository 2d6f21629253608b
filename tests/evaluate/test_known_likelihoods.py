"""Scores of a model whose likelihoods are known: a transformer whose logits are a table's row, set by hand."""

import dataclasses
import itertools
import json
import random

import jax
import numpy as np
import pytest

from scalelab.data.sources.language import transition_matrix
from scalelab.evaluate import choices, tasks
from scalelab.experiments.tasks import make as made
from scalelab.model.transformer import parameter_declarations
from tests.evaluate.runs import loaded

V = 256
# Accuracy on bigrams of who knows the language's rules, and its words' frequencies only.
RULES, FREQUENCIES = 0.993, 0.227


def subject(chain, synthetic=False):
    """The tiny run's model, as wide as its vocabulary: token t enters as the t-th unit vector and leaves unchanged.

    Nothing is added by its blocks, so that logits are `log chain[t]`, [V, V] probabilities of the next token.
    """
    model = loaded()
    shape = dataclasses.replace(
        model.static.model,
        d_model=V,
        n_layers=1,
        n_heads=1,
        n_kv_heads=1,
        d_head=8,
        d_ff=8,
        seq_len=128,
        norm_eps=1e-12,
        tied_head=False,
    )
    config = model.config.copy_and_resolve_references()
    if synthetic:
        config.data.source = "synthetic"
    params = jax.tree.map(
        lambda d: np.full(d.shape, d.fill, np.float32), parameter_declarations(shape)
    )  # zeros, gains of one
    params["embed"]["w"], params["head"]["w"] = np.eye(V, dtype=np.float32), np.float32(np.log(chain) / np.sqrt(V))
    return model._replace(config=config, static=dataclasses.replace(model.static, model=shape), params=params)


def ids(text):
    return list(text.encode()) if isinstance(text, str) else text


def by_hand(chain, items):
    """Choices as docs/tasks.md defines them, from the table: a choice's nats are those of its tokens in sequence."""
    right, shares, bits = [], [], []
    for item in items:
        nats = []
        for choice in item["choices"]:
            whole = ids(item["context"])[-1:] + ids(choice)
            nats.append(-sum(np.log(chain[a, b]) for a, b in itertools.pairwise(whole)))
        sizes = [len(ids(choice)) for choice in item["choices"]]
        right.append(int(np.argmin(np.divide(nats, sizes))) == item["answer"])
        p = np.exp(min(nats) - np.array(nats))
        shares.append(p[item["answer"]] / p.sum())
        bits.append(nats[item["answer"]] / sizes[item["answer"]] / np.log(2))
    return {"acc": np.mean(right), "p_correct": np.mean(shares), "bpb": np.mean(bits)}


def rows(name):
    with open(f"experiments/tasks/{name}.jsonl") as file:
        return [json.loads(line) for line in file]


def evaluated(model, name):
    task = tasks.read_task(f"experiments/tasks/{name}.jsonl")
    return choices.evaluate_task(model, task, choices.encode_task(model, task))


def chain_of(seed):
    return np.random.default_rng(seed).dirichlet(np.full(V, 0.3), V).clip(1e-9)


@pytest.mark.parametrize("name", ["brackets", "keywords", "indentation"])
@pytest.mark.full
def test_a_table_scores_what_the_formula_says(name):
    chain = chain_of(0)
    chain /= chain.sum(1, keepdims=True)
    result, expected = evaluated(subject(chain), name), by_hand(chain, rows(name))
    for metric, value in expected.items():
        assert result[metric] == pytest.approx(value, rel=1e-4), metric
    assert result["items"] == 150 and result["cut"] == 0 and result["chance"] == 0.25


def test_a_uniform_model_pays_eight_bits_a_byte_and_gives_each_choice_its_share():
    model = subject(np.full((V, V), 1 / V))
    result = evaluated(model, "indentation")
    assert result["bpb"] == pytest.approx(8, rel=1e-6) and result["p_correct"] == pytest.approx(1 / 4, rel=1e-4)
    assert evaluated(model, "spelling")["bpb"] == pytest.approx(8, rel=1e-6)


def test_the_languages_own_probabilities_find_its_words():
    """Its rules beat the frequency of its words, whose accuracy is what docs/tasks.md says."""
    language = made._language()
    chain, frequent = transition_matrix(language), np.zeros((V, V))
    frequent[:] = np.append(0, language.start)
    for table, expected_acc in ((chain, RULES), (frequent, FREQUENCIES)):
        table = table.clip(1e-12)
        result, expected = (
            evaluated(subject(table / table.sum(1, keepdims=True), True), "bigrams"),
            by_hand(table, rows("bigrams")),
        )
        assert result["acc"] == pytest.approx(expected["acc"]) and result["acc"] == pytest.approx(
            expected_acc, abs=0.01
        )


@pytest.mark.parametrize("name", ["brackets", "keywords", "indentation"])
def test_whoever_does_not_read_the_context_is_at_chance(name):
    """Four judges, each with a price of its own for every text: 2,000 items, within four standard errors of 1/4."""
    chance = random.Random(name)
    items = [made.TASKS[name](chance) for _ in range(2000)]
    for judge in range(4):
        prices: dict[str, float] = {}
        draw = random.Random(judge)
        right = [
            min(range(4), key=lambda i: prices.setdefault(item["choices"][i], draw.random())) == item["answer"]
            for item in items
        ]
        assert np.mean(right) == pytest.approx(0.25, abs=4 * np.sqrt(0.25 * 0.75 / 2000))
