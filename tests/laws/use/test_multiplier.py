"""The effective-compute multiplier: closed forms, published speed-ups, known noise, and what can't be judged."""

import math

import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.laws import multiplier
from scalelab.laws.use.multiplier.baseline_law import fit_laws
from scalelab.laws.use.multiplier.design import next_pair, smallest_effect
from scalelab.laws.use.multiplier.noise import draw_means, measure_noise
from scalelab.laws.use.multiplier.result import format_factor, join_ends
from scalelab.laws.use.multiplier.sides import read_pairs

E, A, ALPHA, UNIT = 1.2, 1.4, 0.15, 1e11
MARIN = {"E": 1.6, "alpha": 0.0941}  # pinned in marin-community/marin's gates


def loss(flops):
    return E + A * (flops / UNIT) ** -ALPHA


def study(m=1.1, budgets=(1e11, 4e11, 1.6e12, 6.4e12), seeds=3, noise=0.0, correlation=0.0, rng=0, scale=1.0):
    """Rows of both sides; the variant is as good as the baseline at m(C) C."""
    rng = np.random.default_rng(rng)
    at = m if callable(m) else lambda _: m
    rows = []
    for flops in budgets:
        for seed in range(seeds):
            shared, *own = rng.standard_normal(3)
            for side, true, z in zip(("old", "new"), (loss(flops), loss(at(flops) * flops)), own, strict=True):
                error = noise * (correlation**0.5 * shared + (1 - correlation) ** 0.5 * z)
                rows.append({"side": side, "C": flops * scale, "seed": seed, "loss": true * math.exp(error)})
    return rows


def judge(rows, **options):
    return multiplier(rows, baseline="old", **options)["new"]


def test_exact_losses_give_the_multiplier_its_trend_and_the_target():
    result = judge(study(lambda flops: 1.3 * (flops / 1e11) ** -0.04), target_flops=1e14)
    expected = [1.3 * (flops / 1e11) ** -0.04 for flops in (1e11, 4e11, 1.6e12, 6.4e12)]
    # The law is found on a grid of exponents, 4 % apart.
    assert [rung.m["flops"] for rung in result.rungs] == pytest.approx(expected, rel=0.01)
    assert result.trend["b"] == pytest.approx(-0.04, abs=0.002)
    assert result.target["m"] == pytest.approx(1.3 * 1000**-0.04, rel=0.02)
    assert result.target["beyond"] == pytest.approx(1e14 / 6.4e12)
    assert any("extrapolated" in note for note in result.notes)


def test_all_budgets_times_k_change_no_multiplier():
    plain, scaled = (judge(study(noise=0.003, scale=scale)) for scale in (1.0, 1e6))
    for one, other in zip(plain.rungs, scaled.rungs, strict=True):
        assert one.m["flops"] == pytest.approx(other.m["flops"], rel=1e-9)
        assert one.interval90["flops"] == pytest.approx(other.interval90["flops"], rel=1e-9)


def test_swapped_sides_give_the_reciprocal():
    rows = study(1.25)
    swapped = [row | {"side": {"old": "new", "new": "old"}[row["side"]]} for row in rows]
    for one, other in zip(judge(rows).rungs, judge(swapped).rungs, strict=True):
        assert one.m["flops"] * other.m["flops"] == pytest.approx(1, rel=0.005)
    fixed = {"E": 1.2, "alpha": 0.15}  # with one law for both it is exact
    for one, other in zip(judge(rows, fix=fixed).rungs, judge(swapped, fix=fixed).rungs, strict=True):
        assert one.m["flops"] * other.m["flops"] == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize(
    "flops, baseline, variant, published",
    [
        (2.19e17, (3.8104, 405_630), (3.8034, 406_627), 1.031),
        (2.19e17, (3.8104, 405_630), (3.8053, 402_340), 1.033),
        (2.19e17, (3.8104, 405_630), (3.8060, 404_640), 1.023),
        (1.70e18, (3.4339, 273_532), (3.4273, 272_701), 1.042),
        (1.70e18, (3.4339, 273_532), (3.4280, 274_438), 1.031),
        (1.70e18, (3.4339, 273_532), (3.4309, 273_264), 1.018),
    ],
)
def test_marins_gates(flops, baseline, variant, published):
    """With their constants, ((L_b - E) / (L_v - E))^(1/alpha), times the tokens/s. Published: marin issue 4716.

    Theirs were rounded from other digits or computed by a formula that they corrected later: we agree within 0.02.
    """
    sides = {"old": baseline, "new": variant}
    rows = [{"side": s, "C": flops, "loss": x, "tokens": 1e9, "tokens_per_s": r} for s, (x, r) in sides.items()]
    rung = judge(rows, fix=MARIN).rungs[0]
    identity = ((baseline[0] - 1.6) / (variant[0] - 1.6)) ** (1 / 0.0941)
    assert rung.m["flops"] == pytest.approx(identity, rel=1e-9)
    assert rung.m["time"] == pytest.approx(identity * variant[1] / baseline[1], rel=1e-9)
    assert rung.m["time"] == pytest.approx(published, abs=0.02)


def test_marins_worked_example():
    """A is put through the baseline's own point: 3.5422 at 3.82e17; the variant has 3.52 at 410,000 tokens/s."""
    sides = {"old": (3.5422, 433_986), "new": (3.52, 410_000)}
    rows = [{"side": s, "C": 3.82e17, "loss": x, "tokens": 1e9, "tokens_per_s": r} for s, (x, r) in sides.items()]
    result = judge(rows, fix=MARIN)
    A = (3.5422 - 1.6) * 3.82e17**0.0941
    needed = (A / (3.52 - 1.6)) ** (1 / 0.0941)
    assert result.rungs[0].m["time"] == pytest.approx((needed / 433_986) / (3.82e17 / 410_000), rel=1e-9)
    assert result.verdict == "undecided: no interval: one seed"
    assert [each["E"] for each in result.pinned] == pytest.approx([1.28, 1.44, 1.76])
    assert len({round(each["m"], 4) for each in result.pinned}) == 3


def test_currencies_are_not_mixed():
    """Twice the FLOPs a token at equal losses: half as good in FLOPs, equal in time if twice the FLOP/s are had."""
    rows = []
    for flops in (1e11, 4e11, 1.6e12):
        for side, factor, rate in (("old", 1, 100.0), ("new", 2, 100.0)):
            rows.append({"side": side, "C": flops * 1.0, "loss": loss(flops / factor), "tokens": flops**0.5 / factor,
                         "tokens_per_s": rate / factor})  # fmt: skip
    rung = judge(rows).rungs[1]
    assert rung.m["flops"] == pytest.approx(0.5, rel=0.01)
    assert rung.m["time"] == pytest.approx(0.5, rel=0.01)  # the same FLOP/s
    assert rung.m["tokens"] == pytest.approx(2 * 0.5**0.5, rel=0.01)  # tokens grow as the root of FLOPs; half are seen


def test_pairs_save_what_their_correlation_says():
    rows = study(noise=0.01, correlation=0.8, seeds=40)
    noise = measure_noise(read_pairs(rows, "old")["new"])
    assert noise.correlation == pytest.approx(0.8, abs=0.06)
    assert noise.difference == pytest.approx(0.01 * (2 * (1 - 0.8)) ** 0.5, rel=0.15)
    assert noise.saved == pytest.approx(0.8, abs=0.06)
    assert noise.difference_df == 4 * 39
    unpaired = [row | {"seed": f"{row['side']} {row['seed']}"} for row in rows]
    apart = judge(unpaired)
    assert apart.noise["correlation"] is None and any(note.startswith("unpaired") for note in apart.notes)

    def width(study):
        low, high = study.rungs[0].interval90["flops"]
        return math.log(high / low)

    assert width(judge(rows)) / width(apart) == pytest.approx(0.2**0.5, rel=0.2)


def test_draws_of_a_mean_follow_students_t():
    pair = read_pairs(study(noise=0.01, seeds=3, budgets=(1e11,)), "old")["new"]
    noise = measure_noise(pair)
    draws = draw_means(pair, noise, 40_000, np.random.default_rng(0))
    gaps = np.log(draws.baseline / draws.variant)[:, 0] - np.log(pair.baseline[0].mean / pair.variant[0].mean)
    z = gaps * 3**0.5 / noise.difference
    assert noise.difference_df == 2 and draws.pair_df[0] == pytest.approx(2, abs=0.1)
    assert (np.abs(z) < 2.920).mean() == pytest.approx(0.9, abs=0.01)  # t of 2 degrees of freedom, 95 %


def test_the_law_is_that_of_an_independent_fit():
    """Against scipy's least squares of relative residuals, on noisy losses."""
    from scipy.optimize import least_squares

    rng = np.random.default_rng(3)
    flops = np.geomspace(1e11, 4e13, 7)
    losses = loss(flops) * np.exp(0.003 * rng.standard_normal(7))
    law = fit_laws(flops, losses[None], np.ones(7), {})
    x = flops / law.unit
    best = least_squares(lambda p: (p[0] + p[1] * x ** -p[2]) / losses - 1, (1.2, 0.6, 0.15), xtol=1e-12)
    ours = (law.E[0] + law.A[0] * x ** -law.alpha[0]) / losses - 1
    assert (ours**2).sum() <= 2 * best.cost * 1.001
    assert law.alpha[0] == pytest.approx(best.x[2], rel=0.05)


def test_no_difference_is_not_adopted():
    verdicts = [judge(study(1.0, noise=0.005, rng=i), draws=300).verdict.split()[0] for i in range(60)]
    assert sum(word != "undecided:" for word in verdicts) <= 12  # 10 % are due; more than 12 of 60 are 1 in 100
    same = [row | {"side": side} for row in study(1.0, noise=0.005) if row["side"] == "old" for side in ("old", "new")]
    assert judge(same).verdict.startswith("undecided: no difference shown: both sides' losses are equal")


def test_a_large_effect_is_adopted_and_a_loss_rejected():
    assert judge(study(1.5, noise=0.003)).verdict.startswith("adopt: 1.")
    assert judge(study(0.7, noise=0.003)).verdict.startswith("reject: 0.")
    assert judge(study(1.5, noise=0.003)).target["p_better"] > 0.99


def test_diverged_runs_are_counted():
    rows = study(1.5, noise=0.003)
    one = [
        row | {"loss": math.inf} if row["side"] == "new" and row["C"] == 4e11 and row["seed"] == 1 else row
        for row in rows
    ]
    result = judge(one)
    assert result.verdict.startswith("undecided: 1 runs diverged")
    assert result.rungs[1].diverged == (0, 1) and "1 of 3 runs of new diverged" in " ".join(result.notes)
    all_of_them = [row | {"loss": math.nan} if row["side"] == "new" and row["C"] == 6.4e12 else row for row in rows]
    assert judge(all_of_them).verdict == "reject: every run at 6.4e+12 FLOPs diverged"
    assert judge(all_of_them).rungs[-1].m["flops"] is None
    nothing = judge([row | {"loss": math.nan} if row["side"] == "new" else row for row in study(1.5)])
    assert nothing.verdict.startswith("reject") and nothing.law["alpha"] == pytest.approx(ALPHA, rel=0.02)
    assert nothing.target["m"] is None and {rung.m["flops"] for rung in nothing.rungs} == {None}


def test_a_baseline_that_does_not_learn_gives_no_exchange_rate():
    rows = [
        {"side": s, "C": c, "seed": k, "loss": 2.0 + 0.01 * k + 0.02 * (s == "new")}
        for s in ("old", "new")
        for c in (1e11, 4e11, 1.6e12)
        for k in range(3)
    ]
    assert "does not clearly fall with compute" in judge(rows).verdict


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda rows: [row for row in rows if row["side"] == "old"], "a variant is needed"),
        (lambda rows: [*rows, rows[0]], "two runs of seed 0 at 1e.11"),
        (lambda rows: [row | {"C": 9e13} if row["side"] == "new" else row for row in rows if row["seed"] == 0],
         "new has a run at 9e.13 FLOPs and old none near it"),
        (lambda rows: [rows[0] | {"C": 0.0}, *rows[1:]], "row 1: C=0.0"),
        (lambda rows: [rows[0] | {"loss": -1.0}, *rows[1:]], "row 1: loss=-1.0 is not above zero"),
        (lambda rows: [row | {"loss": row["loss"] / (math.log(2) if row["side"] == "new" else 1)} for row in rows],
         "those of new look like bits"),
        (lambda rows: [row for row in rows if row["C"] < 1e12], "at 2 rungs; E and alpha of its law need 3"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_compared(change, message):
    with pytest.raises(BadInput, match=message):
        judge(change(study()))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"fix": {"E": 5.0}}, "--fix E=5 is not below the least mean loss"),
        ({"fix": {"beta": 1.0}}, "only E and alpha"),
        ({"target_flops": -1.0}, "not a number of FLOPs above zero"),
        ({"level": 1.0}, "not between 0 and 1"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(BadInput, match=message):
        judge(study(), **options)
    with pytest.raises(BadInput, match="did you mean 'old'"):
        multiplier(study(), baseline="ol")


@pytest.mark.full
def test_where_rungs_hardly_determine_the_law_no_effect_is_adopted_in_80_percent():
    """Three rungs of two seeds with 0.5 % of scatter: twice and four times the compute are adopted no more often."""
    budgets = (1e11, 1e11 * 40**0.5, 4e12)
    law = {"E": E, "A": A, "alpha": ALPHA, "unit": UNIT}
    assert smallest_effect(budgets, 2, 0.005, 0.5, law, budgets[-1]) is None
    assert smallest_effect(budgets, 5, 0.005, 0.5, law, budgets[-1]) < 1.3
    for m in (2.0, 4.0):
        tried = [study(m, budgets=budgets, seeds=2, noise=0.005, correlation=0.5, rng=i) for i in range(60)]
        adopted = [judge(rows, draws=300).verdict.startswith("adopt") for rows in tried]
        assert np.mean(adopted) < 0.7


@pytest.mark.full
def test_the_smallest_effect_is_adopted_in_about_80_percent():
    budgets = (1e11, 4e11, 1.6e12, 6.4e12)
    law = {"E": E, "A": A, "alpha": ALPHA, "unit": UNIT}
    least = smallest_effect(budgets, 3, 0.004, 0.5, law, budgets[-1])
    adopted = [
        judge(study(least, noise=0.004, correlation=0.5, rng=i), draws=300).verdict.startswith("adopt")
        for i in range(80)
    ]
    assert 0.65 <= np.mean(adopted) <= 0.95
    assert smallest_effect(budgets, 1, 0.004, 0.5, law, budgets[-1]) is None
    assert smallest_effect(budgets, 8, 0.004, 0.5, law, budgets[-1]) < least
    assert smallest_effect(budgets, 3, 0.004, 0.5, law, 100 * budgets[-1]) > least


def test_the_next_pair_is_the_cheapest_that_settles():
    tries = (judge(study(1.03, noise=0.004, correlation=0.5, rng=i)) for i in range(20))
    result = next(each for each in tries if each.verdict.startswith("undecided"))
    pair = next_pair(result)
    assert pair["flops"] == 2 * pair["seeds"] * pair["C"]
    if pair["settles"]:
        low, high = pair["interval90"]
        assert not low < 1 < high
    assert next_pair(judge(study(1.06, seeds=1))) is None


# Wen et al. 2025 (arXiv 2509.02046): AdamW's loss beta + alpha D^-B at 1, 2, 4 and 8 times 20 tokens a parameter, and
# the share of AdamW's tokens that Muon needs. Parameters stay, so a speed-up in tokens is one in FLOPs.
WEN = {
    "130M": ((0.417, 0.493, 3.112), (1.41, 1.34, 1.32, 1.37)),
    "1.2B": ((0.239, 0.486, 2.665), (1.17, 1.12, 1.13, 1.10)),
}


@pytest.mark.parametrize("size", WEN)
def test_published_speed_ups_of_muon_follow_without_a_pinned_constant(size):
    (alpha, power, floor), published = WEN[size]
    rows = []
    for times, speed_up in zip((1, 2, 4, 8), published, strict=True):
        for side, tokens in (("adamw", times), ("muon", speed_up * times)):
            rows.append({"side": side, "C": 1e18 * times, "seed": 0, "loss": floor + alpha * tokens**-power})
    found = multiplier(rows, baseline="adamw", target_flops=8e18)["muon"]
    assert [rung.m["flops"] for rung in found.rungs] == pytest.approx(published, abs=0.005)
    assert found.law["E"] == pytest.approx(floor, abs=0.01) and found.law["alpha"] == pytest.approx(power, abs=0.02)


def test_the_published_losses_of_one_size_give_the_published_speed_up():
    (_, power, floor), published = WEN["130M"]
    losses = {"adamw": (3.529, 3.529 - 0.12), "muon": (3.464, 3.464 - 0.12)}  # 3.529 and 3.464 are theirs, at 1x
    rows = [
        {"side": side, "C": flops, "seed": 0, "loss": loss}
        for side, pair in losses.items()
        for flops, loss in zip((1e18, 2e18), pair, strict=True)
    ]
    found = multiplier(rows, baseline="adamw", target_flops=2e18, fix={"E": floor, "alpha": power})["muon"]
    assert found.rungs[0].m["flops"] == pytest.approx(published[0], abs=0.005)


def test_the_committed_ablations_are_what_the_rules_of_today_say_of_their_runs():
    from experiments import ablations
    from scalelab.record import records

    stored = records.read_json(ablations.RESULTS / "ablations.json")
    anew = ablations.judge_anew(stored)
    assert [each["verdict"] for each in anew["variants"]] == [each["verdict"] for each in stored["variants"]]
    for each in anew["variants"]:  # the verdict is that of the largest rung's own multiplier
        rung = each["rungs"][-1]
        assert each["target"]["m"] == pytest.approx(rung["m"]["flops"], rel=1e-9)
        low, high = each["target"]["together90"]
        assert low < rung["interval90"]["flops"][0] and rung["interval90"]["flops"][1] < high
    batch = next(each for each in anew["variants"] if each["variant"] == "batch_x2")
    assert batch["target"]["m"] == pytest.approx(0.830, abs=5e-4)


def test_a_factor_beyond_a_thousand_is_an_order_of_magnitude():
    """An interval that tells nothing was printed with 27 digits."""
    factors = (0.9115, 999.9, 6.0062e25, 1e-9, 0.001, 0.0, math.inf)
    written = [format_factor(m) for m in factors]
    assert written == ["0.911", "999.900", "6e+25", "1e-09", "0.001", "0.000", "inf"]
    assert join_ends((1e-30, 1.02)) == "1e-30 to 1.020"
