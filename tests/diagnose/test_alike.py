"""Copies: what stays equal or alike by mathematics is none, what began as one is; and short records are no copies."""

import types

import numpy as np
import pytest

from scalelab.diagnose.checks.leaves import alike
from scalelab.diagnose.checks.read import documents
from scalelab.diagnose.checks.read.again.shingles import LONG_BYTES, Documents, Nearest, find_nearest, find_shingles
from scalelab.diagnose.probes.leaves.saved import SavedStep
from scalelab.diagnose.verdict import Judged
from tests.diagnose.evidences import healthy

RNG = np.random.default_rng(0)
Q, UP, EXPERTS = "params.blocks.attention.q.w", "params.blocks.mlp.up.w", "params.blocks.experts.up.w"
O_BIAS, DOWN_BIAS, GAIN = "blocks.attention.o.b", "blocks.mlp.down.b", "blocks.mlp_norm.g"


def drawn(*shape):
    return RNG.standard_normal(shape)


def cast(*shape, axis=0):
    """Slices along an axis that began as one and have been trained apart."""
    return np.repeat(drawn(*shape).take([0], axis), shape[axis], axis) + 0.5 * drawn(*shape)


@pytest.fixture
def asked(monkeypatch):
    """The verdicts of a check on one saved step of these arrays."""

    def ask(check, arrays, **changed):
        step = SavedStep(40, {"step": np.int32(40), "skipped": np.int32(0)} | arrays)
        monkeypatch.setattr(alike, "read_saved_steps", lambda _: ([step], ""))
        return [finding for finding in check(healthy(**changed)) if not isinstance(finding, Judged)]

    return ask


def test_layers_and_experts_that_began_as_one_are_named(asked):
    apart = {Q: drawn(3, 16, 2, 8), UP: drawn(3, 16, 32), EXPERTS: drawn(2, 4, 16, 8)}
    assert asked(alike.check_alike, apart) == []
    layers = apart | {Q: cast(3, 16, 2, 8), UP: cast(3, 16, 32)}
    (verdict,) = asked(alike.check_alike, layers)
    assert verdict.cause == "leaves_identical" and "layers/0 and layers/" in verdict.evidence
    assert asked(alike.check_alike, layers, train__init_from="hf:deepened") == []
    (verdict,) = asked(alike.check_alike, apart | {EXPERTS: cast(2, 4, 16, 8, axis=1)})
    assert "layers/0 expert" in verdict.evidence or "layers/1 expert" in verdict.evidence


def test_one_kind_of_matrix_may_grow_alike_from_zero(asked):
    arrays = {Q: drawn(3, 16, 2, 8), UP: drawn(3, 16, 32), "params.blocks.mlp.down.w": cast(3, 32, 16)}
    assert asked(alike.check_alike, arrays) == []


def test_biases_that_are_added_at_one_place_stay_equal(asked):
    bias = drawn(2, 16)
    assert asked(alike.check_copies, {f"params.{O_BIAS}": bias, f"params.{DOWN_BIAS}": bias}) == []
    (verdict,) = asked(alike.check_copies, {f"params.{GAIN}": np.stack([bias[0]] * 2)})
    assert verdict.cause == "leaves_identical" and "mlp_norm/g" in verdict.evidence
    (verdict,) = asked(alike.check_copies, {Q: np.stack([drawn(16, 2, 8)] * 2)})
    assert "layers/0/attention/q/w, layers/1/attention/q/w" in verdict.evidence


def copies(texts):
    """Documents that are copies of others, by their numbers."""
    tokens = np.frombuffer(b"".join(texts), np.uint8).astype(np.int64)
    documents = Documents(tokens, np.concatenate([[0], np.cumsum([len(text) for text in texts])]))
    shingles = find_shingles(documents, 32)
    nearest = find_nearest(shingles, shingles, LONG_BYTES, itself=True)
    return nearest.document[nearest.is_copy].tolist()


def words(n):
    return b" ".join(bytes(RNG.integers(97, 123, 6, np.uint8)) for _ in range(n))


def test_a_record_that_shares_fields_is_no_copy_and_a_text_is():
    fields = words(16)
    records = [b'{"number": %d, "text": "' % number + fields + b'", "tail": "' + words(6) + b'"}' for number in (1, 2)]
    others = [words(30) for _ in range(6)]
    assert copies(records + others) == []
    assert copies([records[0], records[0], *others]) == [0, 1]
    text = words(90)
    assert copies([text, b"copied: " + text[:-60] + words(8), *others]) == [0, 1]


@pytest.mark.parametrize(("found", "of", "named"), [(6, 102, False), (12, 102, True), (2, 20, False), (60, 60, True)])
def test_a_few_copies_among_few_validation_documents_are_chance(found, of, named):
    split = types.SimpleNamespace(shards=[1], n_tokens=10)
    data = types.SimpleNamespace(dataset=types.SimpleNamespace(parts=[types.SimpleNamespace(train=split)]))
    sides = Documents(np.arange(10), np.array([0, 10])), Documents(np.arange(10) + 1, np.array([0, 10]))
    is_copy, zeros = np.arange(of) < found, np.zeros(of, int)
    verdicts = documents._shared(data, *sides, Nearest(zeros, zeros, is_copy.astype(float), is_copy))[1:]
    assert [verdict.cause for verdict in verdicts] == ["val_in_train"] * named
