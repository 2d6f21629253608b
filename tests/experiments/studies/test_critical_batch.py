"""The critical batch: closed forms against recursions and draws, crossings and vertices of made curves, the page."""

import json
import math

import numpy as np
import pytest

from scalelab.errors import WorkFailed
from scalelab.experiments.shared import RESULTS
from scalelab.experiments.studies import outcome
from scalelab.experiments.studies.critical_batch import __main__ as study
from scalelab.experiments.studies.critical_batch import figure, page, quadratic, transformer
from scalelab.experiments.studies.limits import judge_checks
from scalelab.record import records


def test_gradients_have_the_noise_scale_of_the_closed_form():
    gradients = quadratic.draw_gradients(np.random.default_rng(0), 80_000)
    mean = gradients.mean(axis=0)
    assert gradients.var(axis=0).sum() / (mean @ mean) == pytest.approx(quadratic.true_noise_scale(), rel=0.02)
    assert quadratic.true_noise_scale() == pytest.approx(59.64)


def test_the_variance_of_a_squared_norm_and_the_spread_of_pairs_are_those_drawn():
    rng = np.random.default_rng(0)
    drawn = quadratic.draw_gradients(rng, 8_000 * 16).reshape(-1, 16, 50).mean(axis=1)
    assert quadratic.norm_variance(16) == pytest.approx(np.var((drawn**2).sum(axis=1)), rel=0.1)
    traces, signals = quadratic.pair_estimates(rng, 32, 512, 1500)
    spread = np.var(signals) - np.cov(traces, signals)[0, 1] / quadratic.true_noise_scale()
    assert quadratic.expected_bias(32, 512) == pytest.approx(spread, rel=0.15)


def test_the_expected_loss_is_that_of_step_after_step():
    theta2 = np.ones(quadratic.DIMENSIONS)
    for _ in range(40):
        theta2 = (1 - 0.7 * quadratic.CURVATURES) ** 2 * theta2 + 0.7**2 * quadratic.CURVATURES / 6
    np.testing.assert_allclose(quadratic.variances(0.7, 6, 40), theta2, rtol=1e-10)
    mean, error = quadratic.simulate_loss(0.7, 6, 40, runs=200)
    assert mean == pytest.approx(quadratic.relative_loss(0.7, 6, 40), abs=4 * error)


def test_fewest_steps_are_those_of_an_independent_computation():
    # A grid of 120 rates up to 1.999, computed apart from this code: 10066, 1335, 308, 204 and 185 steps.
    rows = quadratic.best_settings((1, 8, 64, 512, 16384))
    assert [row["steps"] for row in rows] == pytest.approx([10066, 1335, 308, 204, 185], rel=0.03)
    for row in rows[1:3]:
        below, above = (quadratic.relative_loss(row["rate"], row["batch"], row["steps"] - late) for late in (0, 1))
        assert below <= quadratic.TARGET_SHARE < above
    assert quadratic.count_steps(1.5, 1) == math.inf  # the noise alone is above the target


def test_a_hyperbola_and_its_slope_come_back():
    batches = np.array([1, 3, 10, 40, 300])
    fit = quadratic.fit_hyperbola(batches, 70 * (1 + 25 / batches))
    assert (fit.steps, fit.critical, fit.worst) == pytest.approx((70, 25, 0), abs=1e-4)
    scatter = np.random.default_rng(0).normal(0, 0.05, (300, 5))
    fits = [quadratic.fit_hyperbola(batches, 70 * (1 + 25 / batches) * np.exp(each)) for each in scatter]
    spread = np.std([np.log(each.critical) for each in fits])
    assert spread == pytest.approx(np.sqrt(np.mean([each.errors[1] ** 2 for each in fits])), rel=0.15)
    assert quadratic.fit_slope(batches, 3 * batches**0.5) == pytest.approx(0.5)


def test_a_crossing_is_where_a_falling_loss_meets_the_target():
    steps = np.arange(10, 500, 10)
    losses = 5 - 0.5 * np.log(steps)
    truth = math.exp(5)  # 5 - 0.5 ln(S) = 2.5
    assert transformer.find_crossing(steps, losses, 2.5) == pytest.approx(truth, rel=0.01)
    assert transformer.find_crossing(steps, losses + 1, 2.5) == math.inf
    noisy = losses + 0.02 * (-1.0) ** np.arange(len(steps))
    assert transformer.find_crossing(steps, noisy, 2.5) == pytest.approx(truth, rel=0.03)


def test_a_race_is_won_at_the_vertex_with_errors_over_seeds():
    rates = 0.001 * 2.0 ** np.arange(5)
    places = np.log(0.004) + np.array([-0.2, 0.0, 0.2])
    taken = np.exp(np.log(100) + 0.3 * (np.log(rates)[:, None] - places) ** 2)
    best = transformer.describe_race(rates, taken)
    assert (best["steps"], best["rate"]) == pytest.approx((100 * math.exp(0.3 * 0.08 / 3), 0.004), rel=1e-6)
    assert best["rate_error"] == pytest.approx(0.2 / 3**0.5) and best["steps_error"] == pytest.approx(0, abs=1e-9)
    assert best["inside"] and not transformer.describe_race(rates[2:], taken[2:])["inside"]
    with pytest.raises(WorkFailed, match="no run of seed 1 reaches"):
        transformer.describe_race(rates, np.where([True, False, True], taken, np.inf))
    races = [{"batch": b, "rate": 0.002 * b**0.5, "rate_error": 0.1} for b in (1, 4, 16, 64)]
    assert study.rate_slope(races, 20) == pytest.approx([0.5, 0.1 / (2**0.5 * math.log(4))])


def test_the_mean_scale_is_over_steps_with_its_error_over_seeds():
    rows = [{"seed": s, "step": t, "simple": {"scale": t + s}} for s in (0, 1) for t in (10, 20, 60)]
    assert transformer.average_scale(rows, "simple") == pytest.approx((30.5, 0.5 / 30.5))


def test_the_committed_result_is_what_its_parts_give():
    result = records.read_json(RESULTS / "critical_batch.json")
    fit = quadratic.fit_hyperbola([r["batch"] for r in result["races"]], [r["steps"] for r in result["races"]])
    assert fit.critical == pytest.approx(result["fit"]["critical"], rel=1e-3)
    rates = [transformer.describe_race(np.array(r["rates"]), np.array(r["taken"])) for r in result["races"]]
    assert [r["rate"] for r in rates] == pytest.approx([r["rate"] for r in result["races"]])
    checks = judge_checks("critical_batch", result | {"checks": study.list_checks(result)})
    assert json.loads(json.dumps(checks)) == result["checks"]
    made = outcome.make_page("critical_batch", study.__doc__, result, page.describe(result))
    text, _, _ = (RESULTS / "critical_batch.md").read_text().partition("\nCode: ")  # which tests/claims/same.py adds
    assert text == made
    assert len(figure.plot_critical_batch(result).axes) == 3


@pytest.mark.slow
def test_a_small_setting_runs_to_its_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(transformer, "BATCHES", {4: (14, 0), 8: (14, 0)})
    monkeypatch.setattr(transformer, "QUICK_BATCHES", (4, 8))
    monkeypatch.setattr(transformer, "TARGET", 5.0)
    monkeypatch.setattr(transformer, "NOISE_SEQUENCES", 32)
    for name in ("EARLY", "LONG"):
        monkeypatch.setattr(transformer, name, {"batch": 8, "rate": 0.003, "steps": 4, "saved": (2, 4)})
    assert study.main(["--quick", f"--workdir={tmp_path}", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    for one in result["races"]:
        folder = tmp_path / f"batch{one['batch']}" / "runs"
        crossing = transformer.find_crossing(*transformer.read_losses(folder / f"lr{one['rates'][0]:g}-seed1"), 5.0)
        assert one["taken"][0][1] == pytest.approx(crossing) and 1 < crossing < 14
    assert [row["step"] for row in result["noise"]["early"]] == [2, 4]
    assert (tmp_path / "critical_batch.md").exists() and (tmp_path / "critical_batch.png").exists()
