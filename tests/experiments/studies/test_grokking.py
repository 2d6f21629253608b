"""Grokking: the split, the score against numpy, seeds that do not mix, and what a patience would have left."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.experiments.studies import grokking as study


def test_the_split_covers_all_pairs_once():
    seen, others = study.make_pairs(jax.random.key(0), 0.4)
    pairs = {tuple(pair) for pair in np.concatenate([seen, others]).tolist()}
    assert len(pairs) == study.MODULUS**2 and len(seen) == round(0.4 * 97**2)


@pytest.mark.full
def test_the_score_is_that_of_numpy():
    weights = study.init_weights(jax.random.key(1))
    pairs = np.array([(3, 5), (96, 96), (40, 90)])
    embed, hidden, out = (np.float64(weights[name]) for name in ("embed", "hidden", "out"))
    logits = np.maximum(np.concatenate([embed[pairs[:, 0]], embed[pairs[:, 1]]], axis=1) @ hidden, 0) @ out
    chosen = logits[[0, 1, 2], [8, 95, 33]]
    loss, accuracy = study.score(weights, jnp.asarray(pairs))
    assert loss == pytest.approx(np.mean(np.log(np.exp(logits).sum(axis=1)) - chosen), rel=1e-5)
    assert accuracy == np.mean(chosen == logits.max(axis=1))


@pytest.mark.full
def test_it_learns_its_training_pairs_and_seeds_do_not_mix(monkeypatch):
    monkeypatch.setattr(study, "EVERY", 10)
    monkeypatch.setattr(study, "BATCH", 64)
    runs = study.run_arm((0.0, 0.4, 30), 3e-3, 2)
    assert all(run["curves"]["loss"][-1] < run["curves"]["loss"][0] for run in runs)
    (alone,) = study.run_arm((0.0, 0.4, 30), 3e-3, 1)
    np.testing.assert_allclose(alone["curves"]["loss"], runs[0]["curves"]["loss"], rtol=1e-4)


def test_what_is_said_of_a_run():
    accuracy = [0.5, 0.98, 0.99, 1.0]
    run = study.describe_run({"accuracy": accuracy, "test_accuracy": [0.1, 0, 0.4, 0.96], "test_loss": [4, 5, 6, 7]})
    assert (run["memorised"], run["generalised"], run["last"]) == (300, 400, 0.96)
    assert run["stops"] == {"3": {"step": 400, "test_accuracy": 0.96}, "10": None, "30": None}
