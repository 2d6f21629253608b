"""Schedules: what its arms are, curves of a known law and of known spread, and the study once with made-up losses."""

import numpy as np
import pytest

from scalelab.experiments import isoflop
from scalelab.experiments.studies.one_trunk import grid
from scalelab.experiments.studies.schedules import __main__ as study
from scalelab.experiments.studies.schedules import arms, collapse, figure, law
from scalelab.laws.curves.curve import make_curve

STEPS = 400


def rates(kind, steps=STEPS, warmup=20):
    """The LR of every step, written out here."""
    at = np.arange(steps)
    share = {"constant": np.ones(steps), "cosine": 0.55 + 0.45 * np.cos(np.pi * (at - warmup) / (steps - warmup)),
             "wsd20": np.clip((steps - at) / (0.2 * steps), 0, 1)}[kind]  # fmt: skip
    return 0.01 * np.where(at < warmup, (at + 1) / warmup, share)


def multi_power(lr, steps, E=1.5, A=0.5, alpha=0.4, B=20.0, C=3.0, beta=0.5, gamma=0.6):
    """Luo et al. 2025, eq. 1, as the double sum that it is."""
    losses = []
    for t in steps:
        loss = E + A * lr[:t].sum() ** -alpha
        for k in range(1, t):
            area = lr[k:t].sum()
            loss -= B * (lr[k - 1] - lr[k]) * (1 - (C * lr[k] ** -gamma * area + 1) ** -beta)
        losses.append(loss)
    return np.array(losses)


@pytest.mark.full
def test_an_unseen_schedule_of_a_curve_that_follows_the_law_is_predicted():
    curves = {}
    for kind in ("constant", "cosine", "wsd20"):
        lr, at = rates(kind), np.arange(30, STEPS + 1, 10)
        at = at[at < STEPS]  # the last LR of wsd is above zero, as in the written sum
        curves[kind] = make_curve(kind, lr, at, multi_power(lr, at))
    rows = {row["arm"]: row for row in law.score_law(curves)["rows"]}
    assert [rows[kind]["fitted"] for kind in curves] == [True, True, False]
    assert max(rows[kind]["error"] for kind in ("constant", "cosine")) < 1e-3
    assert rows["wsd20"]["error"] < 5e-3 < rows["wsd20"]["baseline"]


def test_the_relative_error_is_a_mean_of_shares():
    assert law.relative_error(np.array([1.1, 1.8]), np.array([1.0, 2.0])) == pytest.approx(0.1)


def test_spread_and_noise_are_those_that_were_put_in():
    rng = np.random.default_rng(0)
    shape = collapse.SHARES**-0.5
    noisy = {width: width**-0.3 * shape * np.exp(0.01 * rng.standard_normal((400, len(shape)))) for width in (16, 32)}
    measured = collapse.measure_spread(noisy)
    assert measured["noise_rms"] == pytest.approx(0.01, rel=0.05)
    assert measured["spread_rms"] == pytest.approx(0.01 * 2**0.5, rel=0.05)  # the noise of the end comes in
    assert measured["raw_spread"] == pytest.approx((1 - 2**-0.3) / (1 + 2**-0.3), rel=0.02)
    bent = {16: noisy[16], 32: noisy[32] * collapse.SHARES**-0.3}
    assert collapse.measure_spread(bent)["ratio"] > 5


def test_decays_are_shares_of_the_run_and_sizes_have_their_tokens():
    trials = arms.make_trials(800, (0, 1))
    assert len(trials) == 30
    decays = {share: trials[arms.name_run(f"wsd{share}", arms.MIDDLE, 1)] for share in arms.SHARES}
    assert {share: run.schedule.decay_steps for share, run in decays.items()} == {5: 40, 10: 80, 20: 160, 40: 320}
    assert {run.schedule.final_share for run in decays.values()} == {0.0}
    assert trials["wsd20-sqrt-lr0.005-seed0"].schedule.decay_shape == "sqrt"
    small = collapse.make_trials((16,), (0,))["d16-seed0"]
    assert small.train.steps * 8 * 64 == pytest.approx(24.6 * 10_320, rel=0.01)


def test_tokens_are_the_optimum_of_the_quickstarts_law():
    """At the optimum dL = 0 along equal FLOPs, which grow as N^e D."""
    law_of_sizes = {key: float(value[0]) for key, value in isoflop.load_earlier_law().params.items()}
    A, B, alpha, beta = (law_of_sizes[key] for key in ("A", "B", "alpha", "beta"))
    for width, ratio in collapse.TOKENS_PER_PARAMETER.items():
        N, (low, high) = grid.count_parameters(width), (width - 8, width + 8)
        flops = np.log(grid.count_flops((high, 1)) / grid.count_flops((low, 1)))
        e = flops / np.log(grid.count_parameters(high) / grid.count_parameters(low))
        assert alpha * A * N**-alpha == pytest.approx(e * beta * B * (ratio * N) ** -beta, rel=0.005)


def test_differences_are_taken_at_each_schedules_best_rate():
    finals = {arm: {arms.MIDDLE: [2.0, 2.1]} for arm in arms.list_arms(100)}
    finals["cosine"] = dict(zip(arms.LRS, ([1.9, 2.0], [1.95, 2.05], [3.0, 3.0], [3.0, 3.1]), strict=True))
    finals[arms.STANDARD] = dict(zip(arms.LRS, ([2.0, 2.0], [1.97, 2.05], [1.8, 1.92], [2.1, 2.2]), strict=True))
    first = study.list_differences(finals)["wsd20 - cosine"]
    assert arms.find_best(finals["cosine"]) == arms.LRS[0] and first["mean"] == pytest.approx(-0.09)
    assert first["error"] == pytest.approx(0.01)


def made_up_result():
    """A result of the right form."""
    rng = np.random.default_rng(0)
    lrs = {arm: arms.LRS if arm in arms.TUNED else (arms.MIDDLE,) for arm in arms.list_arms(100)}
    finals = {arm: {lr: list(2 + 0.01 * rng.standard_normal(3)) for lr in each} for arm, each in lrs.items()}
    reducible = {width: np.exp(0.01 * rng.standard_normal((3, 37))) for width in (16, 24)}
    at, spread = np.arange(30.0, 400.0, 30.0), collapse.measure_spread(reducible)
    row = {"error": 0.004, "baseline": 0.02, "end": -0.01, "steps": at.tolist(), "loss": (3 - at / 400).tolist(),
           "measured": (3.01 - at / 400).tolist()}  # fmt: skip
    return {
        "best_lr": {arm: arms.find_best(finals[arm]) for arm in arms.TUNED},
        "steps": 400, "seeds": 3, "widths": [16, 24], "width_seeds": 3,
        "finals": {arm: {f"{lr:g}": losses for lr, losses in each.items()} for arm, each in finals.items()},
        "differences": study.list_differences(finals), "collapse": {"irreducible": spread, "zero": spread},
        "law": {"rows": [row | {"arm": arm, "fitted": arm in law.FITTED} for arm in finals]},
    }  # fmt: skip


def test_checks_finding_page_and_figure_follow_from_the_result():
    result = made_up_result()
    checks = {row["name"]: row for row in study.list_checks(result)}
    assert checks["multi-power law: mean error of WSD's curve"]["measured"] == pytest.approx(0.4)
    assert len(checks) == 5 and "misses WSD's curve by 0.40%" in study.describe_finding(result)
    assert any("wsd20-sqrt" in line for line in study.describe(result))
    assert len(figure.plot_result(result).axes) == 3
