"""The study of divergence: weights against a closed form, scores by hand, and the committed weights in the code."""

import json
import math

import pytest

from checks.diagnosis import danger as study
from scalelab.diagnose.watch import danger


def _rows(counts):
    """Rows of {signs: (diverged, fine)}."""
    return [
        {"run": f"{signs}{i}", "signs": list(signs), "diverged": i < bad}
        for signs, (bad, good) in counts.items()
        for i in range(bad + good)
    ]


def test_one_sign_has_the_log_odds_ratio_of_its_table(monkeypatch):
    monkeypatch.setattr(study, "RIDGE", 1e-9)
    weights = study.fit_weights(_rows({(): (5, 95), ("blown_up",): (30, 10)}))
    assert weights["intercept"] == pytest.approx(math.log(5 / 95), abs=1e-6)
    assert weights["blown_up"] == pytest.approx(math.log(30 / 10) - math.log(5 / 95), abs=1e-6)


def test_a_sign_of_safety_is_left_out():
    weights = study.fit_weights(_rows({(): (30, 30), ("alarms",): (1, 59)}))
    assert "alarms" not in weights


def test_scores_and_bins_are_those_counted_by_hand():
    cases = (("a", 0.1, False), ("a", 0.1, True), ("b", 0.9, True), ("c", 1.0, True))
    rows = [{"run": run, "chance": chance, "diverged": bad} for run, chance, bad in cases]
    result = study.summarise(rows, 0.5)
    assert result["brier"] == pytest.approx((0.01 + 0.81 + 0.01 + 0) / 4) and result["brier_base_rate"] == 0.25
    low, high = result["bins"]
    assert (low["n"], low["runs"], low["observed"]) == (2, 1, 0.5)
    assert (high["n"], high["runs"], high["observed"]) == (2, 2, 1.0) and high["stated"] == pytest.approx(0.95)


def test_the_code_states_the_committed_weights():
    committed = json.loads((study.RESULTS / "danger.json").read_text())
    assert committed["weights"]["intercept"] == pytest.approx(danger.INTERCEPT, abs=0.005)
    for name, weight in danger.WEIGHTS.items():
        assert committed["weights"].get(name, 0.0) == pytest.approx(weight, abs=0.005)
    scored = committed["scored"]["reported"]
    assert scored["brier"] < min(scored["brier_base_rate"], scored["brier_by_hand"])
