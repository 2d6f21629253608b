"""Tuning of both sides: equal trials, edges widened, optima carried up; against surfaces whose optimum is known."""

import math

import pytest

from scalelab.errors import BadInput
from scalelab.sweep.ablate import carry, tuning
from scalelab.sweep.ablate import study as studies
from scalelab.sweep.ablate.sides import load_sides

KEYS = ("optim.peak_lr",)
BUDGETS = (1e9, 2e9, 4e9, 8e9)


@pytest.fixture(scope="module")
def sides():
    module = "scalelab.experiments.ablation_variants"
    return load_sides(f"{module}:plain", [f"{module}:muon"], {})[0]


@pytest.fixture(scope="module")
def study(sides):
    return studies.make_study(sides, BUDGETS, [16, 16, 16, 16], 2, "own", KEYS)


def surface(best_at, power=0.0, diverges_above=math.inf):
    """Loss of a run: a parabola in log LR around best_at (C / 1e9)^power."""

    def loss(config, flops):
        lr = config.optim.peak_lr
        if lr > diverges_above:
            return math.inf
        return 2.0 + 0.05 * math.log(lr / (best_at * (flops / 1e9) ** power)) ** 2

    return loss


def tune(study, surfaces):
    """(losses of all trials, how many each call trained)."""
    seen = set()

    def train(trials):
        out = {}
        for name, config in trials.items():
            _, side, budget, *_ = name.split("-")
            out[name] = surfaces[side](config, float(name.split(f"{side}-")[1].split("-peak_lr")[0]))
            assert (name not in seen) or budget
            seen.add(name)
        return out

    return tuning.tune_sides(study, train)


@pytest.mark.full
def test_both_sides_get_as_many_trials_and_find_their_optimum(study):
    losses = tune(study, {"plain": surface(4e-3), "muon": surface(0.15)})  # muon's lies two octaves beyond its grid
    numbers = {cell: len(tried) for cell, tried in losses.items()}
    assert {numbers["plain", c] for c in BUDGETS[:3]} == {numbers["muon", c] for c in BUDGETS[:3]}
    assert numbers["muon", 1e9] > 5 and not any(c == BUDGETS[3] for _, c in losses)  # never at the largest rung
    for side, best in zip(study.sides, (4e-3, 0.15), strict=True):
        tuned = tuning.carry_up(study, losses)[side.name]
        assert tuned.problems == []
        for flops in BUDGETS:
            assert tuned.settings[flops]["optim.peak_lr"][0] == pytest.approx(best, rel=0.05)


@pytest.mark.full
def test_an_optimum_that_moves_is_carried_to_the_largest_rung_by_its_law(study):
    losses = tune(study, {"plain": surface(4e-3, -0.2), "muon": surface(0.02, -0.2)})
    tuned = tuning.carry_up(study, losses)[study.sides[0].name]
    value, low, high = tuned.settings[8e9]["optim.peak_lr"]
    assert value == pytest.approx(4e-3 * 8**-0.2, rel=0.05) and low <= value <= high
    assert "~ C^-0." in tuned.how["optim.peak_lr"]


@pytest.mark.full
def test_what_diverged_is_lost_and_an_optimum_at_the_end_is_a_problem(study):
    losses = tune(study, {"plain": surface(4e-3, diverges_above=7e-3), "muon": lambda config, _: config.optim.peak_lr})
    plain = tuning.carry_up(study, losses)[study.sides[0].name]
    assert sum(math.isinf(row["loss"]) for row in plain.rows) >= 3
    muon = tuning.carry_up(study, losses)[study.sides[1].name]
    *edges, straight = muon.problems  # log loss is straight over log LR: its curvature is rounding, of either sign
    assert len(edges) == 3 and all("is at an end of what was tried" in edge for edge in edges)
    assert straight == "the losses of muon do not bend over optim.peak_lr at any rung"
    assert len(losses["muon", 1e9]) == 5 + tuning.MOST_WIDENINGS + 0
    assert len(losses["plain", 1e9]) == len(losses["muon", 1e9])


def test_where_all_diverge_smaller_values_are_tried():
    losses = {(1.0,): math.inf, (2.0,): math.inf}
    assert tuning.point_beyond(KEYS, losses) == (0.5,)


def test_the_lr_of_the_rest_moves_along(study):
    run = tuning.tuning_run(study, study.sides[1], study.rungs[0], (4.0,))
    assert (run.optim.peak_lr, run.optim.rest_lr) == pytest.approx((0.08, 0.012))


def test_seeds_of_the_verdict_are_not_the_one_that_tuning_used(study):
    finals = studies.final_runs(study, study.rungs, {})
    trial = tuning.tuning_run(study, study.sides[0], study.rungs[0], (1.0,))
    assert trial.train.seed not in {run.train.seed for run in finals.values()}
    assert {run.log.role for name, run in finals.items() if "8e+09" in name} == {"holdout"}
    pairs = {name.split("-", 1)[1]: run.train.seed for name, run in finals.items() if name.startswith("plain")}
    assert all(pairs[name.split("-", 1)[1]] == run.train.seed for name, run in finals.items())


@pytest.mark.full
def test_widths_follow_from_tokens_a_parameter(sides):
    chosen = studies.make_study(sides, (1e11, 3e11, 1e12), [], 2, "own", KEYS)
    from scalelab.experiments.ladder_runs import size_and_tokens

    for rung in chosen.rungs:
        N, D = size_and_tokens(studies.make_run(chosen, sides[0], rung, 0))
        assert 10 < D / N < 40
    assert [rung.d_model for rung in chosen.rungs] == sorted(rung.d_model for rung in chosen.rungs)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"budgets": (1e9, 4e9, 2e9)}, "2e.09 comes after 4e.09; nearest: --budgets=1e.09,2e.09,4e.09"),
        ({"budgets": (1e9, 2e9)}, "a ladder needs 3 rungs"),
        ({"sizes": [16, 16]}, "names 2 widths for 4 budgets"),
        ({"seeds": 0}, "--seeds=0: at least 1"),
        ({"tuned": ("optim.weight_decay",)}, "the learning rate is always tuned"),
        ({"tuned": ("optim.peak_lr", "optim.weight")}, "no config key 'optim.weight'"),
        ({"tuned": ("optim.peak_lr", "model.d_model")}, "can't be tuned by factors"),
        ({"rule": "small-bytes"}, "was measured with optim.name=adamw"),
        ({"rule": "small"}, "no ladder rule 'small'"),
        ({"budgets": (1e6, 2e9, 4e9, 8e9)}, "plain at 1e.06 FLOPs: .* are only 0 steps"),
    ],
)
def test_mistakes(sides, changes, message):
    usual = {"budgets": BUDGETS, "sizes": [16] * 4, "seeds": 2, "rule": "own", "tuned": KEYS}
    with pytest.raises(BadInput, match=message):
        studies.make_study(sides, *(usual | changes).values())


def test_a_rung_that_tells_next_to_nothing_hardly_moves_the_line(study):
    flat_then_falling = surface(4e-3, power=-0.4)

    def loss(config, flops):
        return 2.0 + 1e-4 * math.sin(1e4 * config.optim.peak_lr) if flops < 1.5e9 else flat_then_falling(config, flops)

    losses = tune(study, {"plain": loss, "muon": surface(2e-2)})
    side = study.baseline
    tuned = tuning.carry_up(study, losses)[side.name]
    assert "through 3 of 3 rungs (1 that hardly bends)" in tuned.how["optim.peak_lr"]
    value, low, high = tuned.settings[8e9]["optim.peak_lr"]
    truth = 4e-3 * 8**-0.4
    assert low < truth < high and value < 1.3 * truth  # the optima's mean would be twice the truth


def test_a_value_that_may_cost_too_much_is_a_problem(study):
    losses = tune(study, {"plain": surface(4e-3), "muon": surface(2e-2)})
    best = tuning.carry_up(study, losses)[study.baseline.name].best
    wide = lambda flops: (4e-3, 1e-3, 1.6e-2)  # noqa: E731 - a value known to a factor 4
    lines = carry.doubtful_values("plain", best, 0, "optim.peak_lr", study.rungs[-1:], wide)
    assert lines[0].startswith("optim.peak_lr of plain at 8e+09 FLOPs is known to lie in 0.001 to 0.016 only")
    lost = float(lines[0].split("cost ")[1].partition("%")[0]) / 100
    assert lost == pytest.approx(0.025 * (math.log(16) / 3.29) ** 2, rel=0.1)  # log loss rises by 0.025 (log LR)^2
    assert not carry.doubtful_values("plain", best, 0, "optim.peak_lr", study.rungs, lambda _: (4e-3, 3.9e-3, 4.1e-3))
