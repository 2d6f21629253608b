"""The coverage study in small, and its resuming."""

import json

import numpy as np
import pytest
from scipy.stats import binom

from checks.statistics import coverage
from tests.quick import one_in

STUDIES = 24


@pytest.mark.slow
def test_intervals_cover_within_what_few_studies_can_say(tmp_path, monkeypatch):
    """24 studies of the smallest design: a 90 % interval holds 15 of them at least, but for one time in 10,000."""
    monkeypatch.setattr(coverage, "RESAMPLES", 100)
    result = coverage.interval_coverage(coverage.STUDY_ARMS[0], STUDIES, tmp_path)
    least = binom.ppf(1e-4, STUDIES, 0.9) / STUDIES
    assert {name: share for name, share in result.items() if share < least} == {}
    assert len(result) == 5 * 3 + 6
    assert np.mean(list(result.values())) < 0.99  # intervals that hold everything are none


@pytest.mark.full
@pytest.mark.parametrize("arm", one_in(4, coverage.STUDY_ARMS), ids=lambda arm: arm.name)
def test_a_study_of_each_design_is_simulated_and_scored(arm, monkeypatch):
    """Whatever the fits came to take or give, a study of the whole is not begun in vain."""
    monkeypatch.setattr(coverage, "RESAMPLES", 12)
    scored = coverage.simulate_study(arm, 0)
    assert {"loss of one new run", "the form passes its test"} <= scored.keys()
    assert arm.truth or f"{next(iter(coverage.TRUTHS[arm.law]))} bca" in scored


def test_finished_studies_are_not_run_again(tmp_path, monkeypatch):
    rows = [{"E percentile": True}, {"E percentile": False}]
    monkeypatch.setattr(coverage, "simulate_study", lambda arm, seed: rows[seed])
    assert coverage.interval_coverage(coverage.STUDY_ARMS[0], 1, tmp_path) == {"E percentile": 1.0}
    monkeypatch.setattr(coverage, "simulate_study", lambda arm, seed: rows[seed] if seed == 1 else 1 / 0)
    assert coverage.interval_coverage(coverage.STUDY_ARMS[0], 2, tmp_path) == {"E percentile": 0.5}
    (stored,) = tmp_path.iterdir()
    assert [json.loads(line) for line in stored.read_text().splitlines()] == rows


def test_the_page_says_what_covers(tmp_path):
    shares = {"E percentile": 0.9, "E bca": 0.8, "E profile": 0.99}
    result = {"command": "c", "date": "d", "machine": "m", "studies": 200}
    page = coverage.format_page(result | {"coverage": {arm.name: shares for arm in coverage.STUDY_ARMS}})
    assert "| E percentile | 90.0% |" in page
    assert "| E bca | 80.0% (too narrow) |" in page and "| E profile | 99.0% (wider than needed) |" in page
