"""The loss of a validation split: the run's own number, each sequence alone in float64, parts, and packed documents."""

import dataclasses

import numpy as np
import pytest

from scalelab.data.batches.batches import Windows
from scalelab.data.dataset import DatasetPart
from scalelab.evaluate import losses, subject
from scalelab.evaluate.losses import ALL_PARTS
from scalelab.model.attention.documents import DocumentEnds
from scalelab.record import records
from scalelab.train.single import load_run_dataset
from scalelab.train.step.gradients import loss_sums
from tests.evaluate.runs import loaded, log_softmax, plain, settings, trained


def alone(model, row):
    """Nats of each target of one row, from the plain forward in float64."""
    scores = log_softmax(plain(model.static.model, model.params, row[None, :-1]))[0]
    return -scores[np.arange(len(row) - 1), row[1:]]


def test_on_the_windows_of_the_runs_own_evaluations_it_is_their_loss():
    model, config = loaded(), settings()
    (result,) = losses.validation_losses(
        model, load_run_dataset(config), config.eval.batches * config.train.global_batch
    )
    record = records.read_json(trained() / "record.json")
    assert result.loss == pytest.approx(record["val_loss"], rel=2e-6)
    assert result.bpb == pytest.approx(record["bpb"], rel=2e-6)
    assert result.sequences == 2 and result.tokens == 64


def test_mean_and_standard_error_are_those_of_the_sequences_alone():
    model, data = loaded(), load_run_dataset(settings())
    windows = Windows({"x": data.parts[0].val}, 32, "validation")
    each = np.array([alone(model, row).mean() for row in windows[np.arange(len(windows))]])
    (result,) = losses.validation_losses(model, data, 0)
    assert (result.sequences, result.available) == (len(windows), len(windows)) and len(windows) > 20
    assert result.loss == pytest.approx(each.mean(), rel=1e-6)
    assert result.loss_se == pytest.approx(each.std(ddof=1) / np.sqrt(len(each)), rel=1e-5)
    assert result.bpb / result.loss == pytest.approx(1 / np.log(2) / data.bytes_per_token)
    (some,) = losses.validation_losses(model, data, 7)
    assert some.sequences == 7 and some.loss_se > result.loss_se


def test_several_parts_count_by_their_validation_tokens():
    model, data = loaded(), load_run_dataset(settings())
    (part,) = data.parts
    other = DatasetPart(
        "other", part.val, part.train, 2.0
    )  # another source: the same text, held out the other way round
    both = dataclasses.replace(data, parts=(part, other), bytes_per_token=1.5)
    together, *each = losses.validation_losses(model, both, 5)
    assert (together.part, [one.part for one in each]) == (ALL_PARTS, [part.name, "other"])
    share = np.array([part.val.n_tokens, other.val.n_tokens]) / (part.val.n_tokens + other.val.n_tokens)
    assert together.loss == pytest.approx(share @ [one.loss for one in each])
    assert together.loss_se**2 == pytest.approx(share**2 @ np.square([one.loss_se for one in each]))
    assert together.bpb == pytest.approx(together.loss / np.log(2) / 1.5)
    assert each[1].bpb == pytest.approx(each[1].loss / np.log(2) / 2.0)


@pytest.mark.full
def test_where_documents_are_masked_it_is_the_training_loss_of_masked_documents():
    model, data = loaded(), load_run_dataset(settings())
    masked = model._replace(static=dataclasses.replace(model.static, documents="mask"))
    rows = Windows({"x": data.parts[0].val}, 32, "validation")
    tokens = rows[np.arange(len(rows))]
    first = int((tokens[:, :-1] == data.separator).sum())
    assert first > 0
    sums = loss_sums(masked.static, masked.params, tokens, 0.0, DocumentEnds(separator=data.separator))
    (result,) = losses.validation_losses(masked, data, 0)
    assert result.tokens == sums.tokens == tokens[:, 1:].size - first
    assert result.loss == pytest.approx(float(sums.nll / sums.tokens), rel=1e-6)
    assert result.loss != pytest.approx(losses.validation_losses(model, data, 0)[0].loss, rel=1e-6)


def test_padding_has_no_score():
    tokens = np.array([[5, 6, 7, -1, -1], [-1] * 5], np.int32)
    result = subject.token_losses(loaded(), tokens, 0)
    np.testing.assert_array_equal(result.counts, [[True, True, False, False], [False] * 4])
    assert (result.nats[~result.counts] == 0).all() and (result.nats[result.counts] > 0).all()
    assert not result.best[~result.counts].any()
    np.testing.assert_allclose(result.nats[0, :2], alone(loaded(), np.array([5, 6, 7])), rtol=1e-5)
