"""Gradient accumulation: both ways of adding micro-batches against gradients of single sequences, added by hand."""

import jax
import numpy as np
import pytest

from scalelab.experiments.studies import accumulation as study
from scalelab.train.step import state as state_lib


@pytest.mark.full
def test_both_ways_are_weighted_sums_of_the_sequences_own_gradients():
    static, h = study.build_setting()
    params = jax.jit(state_lib.init_state, static_argnums=0)(static, h).params
    tokens = study.draw_batch(3)
    counts = (tokens[:, 1:] >= 0).sum(axis=1)
    leaves = [jax.tree.leaves(study.mean_gradient(static, params, row[None])) for row in tokens]
    own = [np.concatenate([np.ravel(leaf) for leaf in each]).astype(np.float64) for each in leaves]
    flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])  # noqa: E731
    whole = np.average(own, axis=0, weights=counts)
    assert np.linalg.norm(flat(study.mean_gradient(static, params, tokens)) - whole) < 1e-5 * np.linalg.norm(whole)
    parts = [np.average(own[part::4], axis=0, weights=counts[part::4]) for part in range(4)]
    means = flat(study.mean_of_means(static, params, tokens, 4))
    assert np.linalg.norm(means - np.mean(parts, axis=0)) < 1e-5 * np.linalg.norm(means)
    assert np.linalg.norm(means - whole) > 0.05 * np.linalg.norm(whole)


@pytest.mark.full
def test_sgd_moves_as_often_as_far_as_the_division_was_forgotten(monkeypatch):
    monkeypatch.setattr(study, "STEPS", 2)
    monkeypatch.setattr(study, "FORGOTTEN", 3)
    assert study.forgotten_division("SGD", 0)["first_step"] == pytest.approx(3, rel=1e-4)
    assert study.forgotten_division("AdamW", 0)["first_step"] == pytest.approx(1, rel=1e-2)
