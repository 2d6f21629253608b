"""Lottery tickets: what pruning keeps by hand, training that leaves pruned weights alone, and tickets that win."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.experiments.studies import lottery_ticket as study


def test_the_smallest_of_the_kept_weights_go_and_the_rest_stays():
    weights = np.array([[0.1, -3.0, 0.5], [0.0, 0.2, -0.4]])
    mask = np.array([[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    kept = study.prune_smallest(weights, mask, 0.4)
    np.testing.assert_array_equal(kept, [[0, 1, 1], [0, 0, 1]])  # 2 of 5 go; the weight pruned before stays pruned


@pytest.mark.full
def test_training_moves_only_weights_that_the_mask_keeps(monkeypatch):
    monkeypatch.setattr(study, "STEPS", 3)
    start = [each[None] for each in study.draw_weights(jax.random.key(0))]
    rng = np.random.default_rng(0)
    mask = [(rng.random(each.shape) < 0.3).astype(np.float32) for each in start]
    images = [jnp.asarray(each)[None] for each in study.make_images(0)]
    study.train_masked.clear_cache()
    last, accuracy = study.train_masked(start, mask, images, jnp.array([0]))
    for before, kept, after in zip(start, mask, last, strict=True):
        assert not np.any(np.asarray(after)[kept == 0])
        moved = np.asarray(after != before)[kept == 1]
        assert moved.mean() > 0.9  # a unit that no input of the batches reaches has no gradient
    logits = study.classify([each[0] for each in last], images[2][0])
    by_hand = np.mean(np.argmax(np.asarray(logits), axis=1) == np.asarray(images[3][0]))
    assert float(accuracy[0]) == pytest.approx(by_hand, abs=1e-3)
    study.train_masked.clear_cache()  # a program of 3 steps


@pytest.mark.full
def test_layers_lose_their_share_each_round_and_tickets_win(monkeypatch):
    monkeypatch.setattr(study, "LAYERS", (100, 32, 16, 10))
    monkeypatch.setattr(study, "ROUNDS", 5)
    monkeypatch.setattr(study, "STEPS", 200)
    study.train_masked.clear_cache()
    rows = study.measure_seeds([0, 1])
    study.train_masked.clear_cache()
    weights, rates = np.array([3200, 512, 160]), np.array([2 / 3, 2 / 3, 5 / 6])
    for round_, row in enumerate(rows):
        assert row["left"] == pytest.approx(np.sum(weights * rates**round_) / weights.sum(), rel=0.01)
    assert rows[0]["ticket"] == rows[0]["random mask"]  # nothing is pruned yet
    gains = study.compare_arms(rows)
    assert gains[-1]["over new values"][0] > 0.02 and gains[-1]["over random mask"][0] > 0.02
    assert gains[0]["over whole"] == (0, 0)
