"""The LR that diverges over width: brackets, both laws, and how often the forecast's interval holds a new run."""

import math

import numpy as np
import pytest

from scalelab.sweep.scaling import divergence
from scalelab.sweep.scaling.divergence import Bracket
from tests.quick import one_in

WIDTHS = (16, 32, 48, 64)


def planted(exponent, rng, seed_noise=0.15, width_noise=0.0, step=0.3):
    """Brackets of three seeds a width about 3 (width / 16)^exponent; the LR lies anywhere within its bracket."""
    brackets = {}
    for width in WIDTHS:
        shift = width_noise * rng.standard_normal()
        logs = math.log(3) + exponent * math.log(width / 16) + shift + seed_noise * rng.standard_normal(3)
        ends = logs + step * rng.uniform(0, 1, 3)
        brackets[width] = [Bracket(math.exp(end - step), math.exp(end)) for end in ends]
    return brackets


def test_a_bracket_ends_at_the_least_lr_that_diverged():
    assert divergence.find_bracket({1.0: False, 2.0: False, 4.0: True, 8.0: False}) == Bracket(2.0, 4.0)
    assert divergence.find_bracket({1.0: True, 2.0: False}) is None
    assert divergence.find_bracket({1.0: False, 2.0: False}) is None
    assert Bracket(2.0, 8.0).middle == 4


@pytest.mark.parametrize(("exponent", "name"), [(-1.0, divergence.POWER), (0.0, divergence.FLAT)])
def test_the_law_that_the_runs_follow_has_the_weight(exponent, name):
    brackets = planted(exponent, np.random.default_rng(0), 0.02, step=0.05)
    facts = divergence.forecast(brackets, 128)
    assert facts["low"] < facts["lr"] < facts["high"] and facts["lr"] == pytest.approx(3 * 8**exponent, rel=0.1)
    weights = {law["name"]: law["weight"] for law in facts["laws"]}
    assert sum(weights.values()) == pytest.approx(1) and weights[name] > 0.5
    assert {law["name"]: law["exponent"] for law in facts["laws"]}[divergence.POWER] == pytest.approx(exponent, abs=0.1)


def test_runs_that_agree_to_the_bracket_have_an_interval_of_its_step_at_least():
    brackets = {width: [Bracket(1.0, 1.35)] * 3 for width in WIDTHS}
    facts = divergence.forecast(brackets, 128)
    assert facts["low"] < 1.05 and facts["high"] > 1.3


@pytest.mark.parametrize(("exponent", "width_noise"), one_in(2, [(0, 0), (-0.2, 0.1), (-0.5, 0.2), (-1, 0)]))
def test_the_interval_holds_a_new_run_as_often_as_it_says(exponent, width_noise):
    rng, draws, hits = np.random.default_rng(1), 60, 0
    for _ in range(draws):
        facts = divergence.forecast(planted(exponent, rng, width_noise=width_noise), 128)
        shift = width_noise * rng.standard_normal() + 0.15 * rng.standard_normal()
        hits += facts["low"] <= 3 * 8**exponent * math.exp(shift) <= facts["high"]
    assert hits / draws > divergence.LEVEL - 3 * math.sqrt(0.09 / draws)
