"""The schedule that ends lowest: by the paper's double sums no schedule of simple families ends lower."""

import itertools

import numpy as np
import pytest

from scalelab.laws.curves.best_schedule import minimise_final_loss
from scalelab.laws.curves.curve import make_curve
from scalelab.laws.law.curve_forms import CURVE_LAWS
from tests.laws.curves.test_curves import naive_annealing, naive_drop
from tests.laws.curves_examples import ANNEALING, MULTI_POWER, PEAK, SCHEDULES

STEPS = 200
PUBLISHED = {"E": 2.375, "A": 0.654, "alpha": 0.429, "B": 523.425, "C": 2.025, "beta": 0.594, "gamma": 0.635}


def end_multi_power(lr, E, A, alpha, B, C, beta, gamma):
    """Luo et al. 2025, eq. 1, at the last step."""
    return E + A * lr.sum() ** -alpha - B * naive_drop(lr, len(lr), C, beta, gamma)


def end_annealing(lr, E, A, alpha, C, memory):
    """Tissue et al. 2024, eq. 1, at the last step."""
    return E + A * lr.sum() ** -alpha - C * naive_annealing(lr, int(np.argmax(lr)) + 1, len(lr), 1 - 1 / memory)


def families(lowest):
    """Non-increasing shares of the peak: held, then a power of a line, or two falls at once; and two cosines."""
    t = np.linspace(0, 1, STEPS - STEPS // 20 + 1)
    for start, power in itertools.product((0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9), (0.5, 1.0, 1.5, 2.0)):
        left = np.clip((1 - t) / (1 - start), 0, 1)
        yield lowest + (1 - lowest) * left**power
    for final in (lowest, 0.3):
        yield final + (1 - final) * 0.5 * (1 + np.cos(np.pi * t))


@pytest.mark.full
@pytest.mark.parametrize(
    ("law", "end", "params"),
    [("multi_power", end_multi_power, MULTI_POWER), ("annealing", end_annealing, ANNEALING)],
)
def test_no_schedule_of_simple_families_ends_lower(law, end, params):
    like = make_curve("cosine", SCHEDULES["cosine"](STEPS))
    best = minimise_final_loss(CURVE_LAWS[law], params, like, lowest=0.05)
    rivals = [PEAK * np.concatenate([like.lr[: STEPS // 20 - 1] / PEAK, shares]) for shares in families(0.05)]
    ends = [end(lr, **params) for lr in [best.lr, *rivals]]
    assert ends[0] < min(ends[1:]) + 2e-4  # the search merges changes, and has 40 places
    assert ends[0] < end(like.lr, **params) - 0.02
    np.testing.assert_array_equal(best.lr[: STEPS // 20], like.lr[: STEPS // 20])


def test_it_stays_where_runs_were():
    like = make_curve("cosine", SCHEDULES["cosine"](STEPS))
    best = minimise_final_loss(CURVE_LAWS["multi_power"], MULTI_POWER, like, lowest=0.2, fastest=0.03)
    shares = best.lr[like.warmup :] / PEAK
    assert shares.min() == pytest.approx(0.2, abs=1e-6) and (np.diff(shares) <= 1e-12).all()
    assert -np.diff(shares).min() <= 0.03 + 1e-9


@pytest.mark.full
def test_the_published_law_wants_a_late_decay_below_cosine():
    """Luo et al. 2025, section 5, with their parameters: held for most of the run, then down to little."""
    t = np.arange(2400)
    fall = 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * (t - 216) / (2400 - 216)))
    like = make_curve("cosine", 3e-4 * np.where(t < 216, (t + 1) / 216, fall))
    best = minimise_final_loss(CURVE_LAWS["multi_power"], PUBLISHED, like)
    shares = best.lr / best.lr.max()
    assert shares[1200] > 0.99 and shares[-1] < 0.05
    assert end_multi_power(best.lr, **PUBLISHED) < end_multi_power(like.lr, **PUBLISHED) - 0.01
