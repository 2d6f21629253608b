"""The comparison of optimizers: fair draws, and what is made of results whose answer is known."""

import math

import numpy as np
import pytest

from configs import tiny
from experiments.optimizers import race, ranking
from scalelab.defaults import DEFAULTS


def runs(*losses):
    return [{"loss": loss} for loss in losses]


def test_every_optimizer_gets_the_same_points_of_the_unit_cube():
    for name, own in DEFAULTS.items():
        drawn, reference = race.points(name, 7, 0), race.points("adamw", 7, 0)
        for mine, theirs in zip(drawn, reference, strict=True):
            factor = mine["optim.peak_lr"] / own["peak_lr"][0]
            assert factor == pytest.approx(theirs["optim.peak_lr"] / DEFAULTS["adamw"]["peak_lr"][0])
            assert race.LR_FACTORS[0] <= factor <= race.LR_FACTORS[1]
            assert mine["schedule.warmup_share"] == theirs["schedule.warmup_share"]
            betas = [value for key, value in mine.items() if "beta" in key]
            assert [theirs["optim.beta2"]][: len(betas)] == betas and (betas or name in ("sgd", "adafactor"))


def test_trials_are_resolved_and_seeds_of_the_best_are_fresh():
    made = race.tuning(tiny.get_config(), ["muon", "sgd"], 2)
    assert list(made) == ["muon-tune00", "muon-tune01", "sgd-tune00", "sgd-tune01"]
    assert {config.train.seed for config in made.values()} == {0}
    last = race.finals(tiny.get_config(), {"sgd": race.points("sgd", 2, 0)[1]}, 3)
    assert [config.train.seed for config in last.values()] == [1, 2, 3]
    assert {config.optim.peak_lr for config in last.values()} == {made["sgd-tune01"].optim.peak_lr}


def test_flips_of_two_optimizers_are_the_closed_form():
    """a has trials 1 and 4, b only 2s: b is first where both draws of a are 4, in a quarter of all."""
    found = ranking.flips({"a": runs(1.0, 4.0), "b": runs(2.0, 2.0)})
    assert found["pairs"] == pytest.approx(0.25, abs=0.03) == found["first"]
    assert found["ranks90"] == {"a": [1, 2], "b": [1, 2]}
    sure = ranking.flips({"a": runs(1.0, 1.1), "b": runs(2.0, math.inf), "c": runs(3.0, 3.0)})
    assert sure["first"] == 0 and sure["ranks90"]["a"] == [1, 1]


def test_target_is_interpolated_and_median_over_seeds():
    def run(*curve):
        return {"curve": list(curve), "tokens_per_s": 100.0}

    seeds = [run((10, 3.0), (20, 2.0)), run((10, 2.6), (20, 2.0)), run((10, 2.4), (20, 2.0))]
    reached = ranking.to_target(seeds, 2.5, 50)
    steps = np.median([15.0, 10 + 10 * 0.1 / 0.6, 10.0])
    assert reached == pytest.approx({"steps": steps, "tokens": 50 * steps, "seconds": steps / 2})
    assert ranking.to_target([*seeds, run((10, 3.0), (20, 2.6))], 2.5, 50) is None


def test_the_table_ranks_and_explains():
    tuned = {"adamw": runs(2.0, 2.1), "sgd": runs(2.9, math.inf), "lion": runs(2.0, 2.2)}
    ended = {
        name: [{"loss": loss, "curve": [], "tokens_per_s": 1.0} for loss in losses]
        for name, losses in {"adamw": (2.0, 2.02), "sgd": (3.0, 3.02), "lion": (2.01, 2.03)}.items()
    }
    values = {name: race.points(name, 2, 0)[0] for name in tuned}
    rows = ranking.table(tuned, ended, values, dict.fromkeys(tuned, 8.0), None, 1)
    assert [row["name"] for row in rows] == ["adamw", "lion", "sgd"]
    assert rows[0]["explained"].startswith("the reference")
    assert "no difference shown" in rows[1]["explained"]
    assert (
        "+1.000, 50 times the seeds' spread" in rows[2]["explained"]
        and "1 of 2 trials diverged" in rows[2]["explained"]
    )
