"""`diagnose --batch`: losses and gradient norms of single rows against what the trainer itself logged."""

import pytest

from scalelab.diagnose.batch import describe_batch
from scalelab.diagnose.evidence import gather_evidence
from scalelab.record import records
from scalelab.train.single import train_single
from tests.train.resume.test_compatibility import config


@pytest.mark.slow
def test_a_batch_of_one_row_has_the_loss_and_the_gradient_norm_of_its_step(tmp_path):
    folder = tmp_path / "run"
    train_single(config(train__global_batch=1, checkpoint__every_steps=2, train__steps=4), folder)
    weights_step, (row,) = describe_batch(gather_evidence(folder), 3)
    (logged,) = (line for line in records.read_metrics(folder) if line["step"] == 3)
    assert weights_step == 2
    assert row.loss == pytest.approx(logged["train_loss"], rel=1e-5)
    assert row.grad_norm == pytest.approx(logged["grad_norm"], rel=1e-5)
