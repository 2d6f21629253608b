"""The gain over fresh seeds against scipy's paired t, the unstable LR, warm-up and clipping on known numbers."""

import math

import numpy as np
import pytest
from scipy import stats

from scalelab.sweep.tune import stability, verdict


def test_the_gain_is_the_paired_t_interval():
    rng = np.random.default_rng(0)
    before = 3 + 0.1 * rng.standard_normal(5)
    after = before - 0.05 + 0.02 * rng.standard_normal(5)
    gain = verdict.compare_losses(before.tolist(), after.tolist())
    low, high = stats.ttest_rel(before, after).confidence_interval(0.9)
    assert gain.interval == pytest.approx((low, high)) and gain.scatter == pytest.approx(after.std(ddof=1))
    assert verdict.judge_gain(gain).startswith("adopt: better by")


def test_other_arms_tell_the_noise_too():
    """Two seeds of two settings leave one degree of freedom; each arm adds one, and a diverged one none."""
    before, after, others = [3.0, 3.1], [2.9, 3.01], [[2.95, 3.06], [3.2, 3.29], [2.9, math.inf]]
    alone, gain = verdict.compare_losses(before, after), verdict.compare_losses(before, after, others=others)
    assert (alone.freedom, gain.freedom) == (1, 3) and gain.mean == pytest.approx(alone.mean)
    assert verdict.judge_gain(gain).startswith("adopt: better by 0.0950 nats (90%: ")
    assert verdict.judge_gain(verdict.compare_losses(before, [2.96, 3.02], others=others)).startswith("adopt")
    few = verdict.judge_gain(verdict.compare_losses(before, [2.96, 3.02]))
    assert "not told apart from noise" in few and "; 2 seeds hardly tell: --seeds=4 would show a gain from about" in few


def test_a_seed_on_which_both_diverge_tells_nothing():
    gain = verdict.compare_losses([3.0, math.inf, 3.1], [2.9, math.inf, 3.01])
    low, high = stats.ttest_rel([3.0, 3.1], [2.9, 3.01]).confidence_interval(0.9)
    assert gain.interval == pytest.approx((low, high))


@pytest.mark.parametrize(
    "before, after, words",
    [
        ([3.0, 3.1, 3.0], [3.01, 3.08, 3.02], "not told apart from noise"),
        ([3.0, 3.1, 3.05], [3.2, 3.31, 3.24], "it is better by"),
        ([3.0], [2.9], "has no interval"),
        ([3.0, 3.1], [3.0, math.inf], "the best trial diverges on another seed"),
    ],
)
def test_what_is_not_a_gain_keeps_the_config(before, after, words):
    said = verdict.judge_gain(verdict.compare_losses(before, after))
    assert said.startswith("keep the config as it is") and words in said


def test_a_config_that_diverges_is_replaced():
    assert verdict.judge_gain(verdict.compare_losses([math.inf, 3.0], [2.9, 2.9])).startswith("adopt: the config as it")


def test_fresh_seeds_seldom_adopt_what_is_no_better():
    rng = np.random.default_rng(1)
    gains = [verdict.compare_losses(*(3 + 0.01 * rng.standard_normal((2, 3))).tolist()) for _ in range(2000)]
    adopted = np.mean([verdict.judge_gain(gain).startswith("adopt") for gain in gains])
    assert adopted == pytest.approx(0.05, abs=0.015)


def test_the_unstable_rate_lies_between_two_probes():
    rates = stability.probe_rates(1e-3, 1e-1)
    losses = {rate: math.inf if rate > 2e-2 else 3.0 for rate in rates}
    unstable = stability.find_unstable(losses)
    assert unstable.stable < 2e-2 < unstable.least and unstable.least / unstable.stable == pytest.approx(100 ** (1 / 7))
    assert stability.find_unstable(dict.fromkeys(rates, 3.0)).least is None


def test_the_shortest_warmup_that_bears_the_rate():
    assert stability.warmup_ladder(100, 5) == [5, 10, 20, 40]
    assert stability.shortest_warmup({5: math.inf, 10: 3.0, 20: 2.9}) == 10
    assert stability.shortest_warmup({5: math.inf}) is None
    assert stability.warmed_rate(3e-3, 1e-1) == pytest.approx(3e-2) and stability.warmed_rate(3e-2, 1e-1) == 0.1


def test_clipping_counts_steps_after_warmup():
    metrics = [{"step": 1, "grad_norm": 50.0}] + [{"step": 10 + i, "grad_norm": 0.1 * (i + 1)} for i in range(20)]
    clipping = stability.read_clipping(metrics, warmup=5, clip_norm=0.85)
    assert clipping.quantile == pytest.approx(np.quantile(0.1 * np.arange(1, 21), 0.9))
    assert clipping.share_clipped == 0.6 and clipping.too_often
    assert stability.read_clipping(metrics, 5, 0.0).share_clipped is None
    assert stability.read_clipping([{"step": 1, "train_loss": 3.0}], 0, 1.0) is None
