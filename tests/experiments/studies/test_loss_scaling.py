"""Mixed precision: bf16's spacing against the type itself, and an error that a scale undoes."""

import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.experiments.studies import loss_scaling as study


def test_half_the_spacing_is_where_bf16_starts_to_move():
    weights = np.array([1.0, 1.5, 1.984375, -0.3, 3e-4, 96.0])
    weights = np.asarray(jnp.asarray(weights, jnp.bfloat16).astype(jnp.float32), np.float64)
    half = study.half_spacing(weights)

    def moved(step):
        return np.asarray(jnp.asarray(weights + step, jnp.bfloat16).astype(jnp.float32)) != weights

    away = np.sign(weights)
    assert not moved(0.99 * half * away).any() and moved(1.01 * half * away).all()


@pytest.mark.full
def test_a_scale_restores_what_a_large_batch_loses(monkeypatch):
    monkeypatch.setattr(study, "SCALES", (2.0**-8, 1.0, 2.0**12, 2.0**40, 2.0**41))
    small, plain, scaled, *overflowed = study.gradient_errors(1024, 0)
    assert small > 5 * plain > 5 * scaled and scaled < 2.0**-8 and overflowed == [None, None]


@pytest.mark.full
def test_updates_are_lost_as_the_spacing_says():
    row = study.lost_updates(1e-4, 1)
    assert 0.3 < row["measured"] < 0.9 and row["measured"] == pytest.approx(row["closed_form"], abs=0.02)
