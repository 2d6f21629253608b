"""The study of mixtures on losses of a known law, without training; and its runs."""

import json
from fractions import Fraction

import numpy as np
import pytest

from scalelab.config.mixture_text import parse_mixture
from scalelab.experiments.shared import RESULTS
from scalelab.experiments.studies.mixture import __main__ as study
from scalelab.experiments.studies.mixture import answers, runs
from scalelab.laws.use.mixture import MixingLaws, find_best, whole_simplex

C = np.array([2.0, 1.9, 1.0])
T = np.array([[-2.0, -0.6, -0.2], [-0.4, -1.8, 0.1], [0.3, 0.2, -2.6]])
SEEDS = (0, 1)


def law(shares, flops=1.0):
    """Losses [3]: all of them fall alike with compute, so that ratios of two mixtures stay."""
    return (C + np.exp(T @ np.asarray(shares, float))) * (0.8 + 0.2 * flops**-0.3)


def draw(parts, shape, noise=0.002, seed=0):
    rng = np.random.default_rng((seed, *parts, *shape))
    flops = runs.count_flops(shape) / runs.count_flops(runs.PROXY)
    return np.array([law(runs.of_parts(parts), flops) * np.exp(noise * rng.standard_normal(3)) for _ in SEEDS])


def test_mixtures_sum_to_one_and_names_tell_all_runs_apart(tmp_path):
    assert len(set(runs.LATTICE)) == 10 and runs.EVEN in runs.LATTICE and not set(runs.HELD_OUT) & set(runs.LATTICE)
    assert all(sum(parts) == runs.PARTS for parts in (*runs.LATTICE, *runs.HELD_OUT))
    for shares in ((0.13370000001, 0.4279, 0.4384), runs.of_parts((13, 1, 1)), (1.0, 0.0, 0.0)):
        (stage,) = parse_mixture(runs.shares_text(shares))
        assert sum(stage.shares.values()) == 1
        assert [float(each) for each in stage.shares.values()] == pytest.approx([float(s) for s in shares], abs=1e-3)
    assert parse_mixture(runs.shares_text(runs.of_parts(runs.EVEN)))[0].shares["code"] == Fraction(1, 3)
    names = [runs.name_trial(runs.label_of(parts), runs.PROXY, seed) for parts in runs.LATTICE for seed in SEEDS]
    assert len(set(names)) == 20
    trial = runs.make_trial(tmp_path, runs.of_parts((3, 3, 9)), runs.PROXY, 1)
    assert trial.data.mixture == "code=1/5,prose=1/5,tables=3/5" and trial.train.steps == runs.PROXY[1]


@pytest.mark.full
def test_the_best_shares_and_the_larger_run_of_a_known_law_are_found():
    losses = {parts: draw(parts, runs.PROXY) for parts in runs.LATTICE}
    fits = answers.fit_laws(losses)
    best = answers.find_shares(fits)
    truth, _ = find_best(MixingLaws(C, T, np.full(3, 1 / 3)), whole_simplex(3))
    assert all(low <= share <= high for share, (low, high) in zip(truth, best.intervals, strict=True))
    held = answers.score_held_out(fits, {parts: draw(parts, runs.PROXY) for parts in runs.HELD_OUT})
    assert all(abs(row["predicted"] - row["measured"]) < 0.01 for row in held)
    ladder = answers.fit_ladder({shape: draw(runs.EVEN, shape) for shape in runs.LADDER})
    predicted = answers.predict_larger(fits, ladder, best.shares)
    measured = law(best.shares, runs.count_flops(runs.LARGER) / runs.count_flops(runs.PROXY)).mean()
    low, high = predicted["interval90"]
    assert low < measured < high and high / low < 1.1
    assert predicted["gain90"][0] < predicted["gain"] < predicted["gain90"][1]


def test_the_checks_follow_from_the_losses_and_each_can_fail():
    result = json.loads((RESULTS / "mixture.json").read_text())
    again = study.list_checks(result)
    assert [row["inside"] for row in again] == [row["inside"] for row in result["checks"]]
    worse = json.loads(json.dumps(result))
    worse["measured"] *= 1.2
    worse["held_out"][0]["predicted"] += 1
    worse["difference"] = {"mean": 0.5, "low": 0.4, "high": 0.6}
    worse["shares"], worse["intervals"][0] = [0.0, 0.5, 0.5], [0.0, 1.0]
    assert not any(row["inside"] for row in study.list_checks(worse))
    assert study.describe_finding(result) == result["finding"]
    assert all(isinstance(line, str) for line in study.describe(result))
