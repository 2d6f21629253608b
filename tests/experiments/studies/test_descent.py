"""Descent by hand: what is measured on the quadratic agrees with closed forms."""

import math

import numpy as np
import optax
import pytest

from scalelab.experiments.studies import descent


def test_measured_numbers_agree_with_closed_forms():
    rows = descent.list_checks()
    assert len(rows) == 10
    for row in rows:
        assert row["measured"] == pytest.approx(row["known"], rel=0.02) and row["inside"], row["name"]


def test_a_path_is_that_of_the_matrix_power():
    lr = 0.05
    path = descent.descend(optax.sgd(lr), steps=30)
    factors = 1 - lr * np.array(descent.CURVATURES)
    np.testing.assert_allclose(path, descent.START * factors ** np.arange(31)[:, None], rtol=1e-4, atol=1e-7)


def test_without_bias_correction_steps_come_back_to_the_learning_rate():
    assert descent.bias_factor(1) == pytest.approx(0.1 / math.sqrt(0.001))
    assert descent.bias_factor(20_000) == pytest.approx(1, abs=1e-6)


def test_it_writes_its_page(tmp_path, capsys):
    assert descent.main([f"--workdir={tmp_path}"]) == 0
    assert "| Adam, first step / LR | 1 | closed form |" in (tmp_path / "descent.md").read_text()
    assert (tmp_path / "descent.png").exists()
    assert descent.main(["--workdri=x"]) == 2 and "did you mean" in capsys.readouterr().err
