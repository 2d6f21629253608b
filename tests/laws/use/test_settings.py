"""Best settings and their laws: exact on surfaces without noise, Student's and textbook intervals, honest coverage."""

import numpy as np
import pytest
from scipy import stats

from scalelab.errors import BadInput
from scalelab.laws.use.settings import best as best_lib
from scalelab.laws.use.settings import law as law_lib
from scalelab.laws.use.settings import optima, surface
from scalelab.laws.use.settings.best import fit_best_settings
from scalelab.laws.use.settings.surface import Rows
from tests.laws.sweeps import LRS, SIZES, best_batch, best_lr, step_law_sweep

PER = ("N", "D")
BOTH = ("lr", "batch_tokens")
WIDE_LRS = 2.0 ** np.arange(-13, -5.9, 0.5)
WIDE_BATCHES = 2048 * 2.0 ** np.arange(3, 13)


def test_without_noise_the_published_law_comes_back_exactly():
    table = step_law_sweep(np.random.default_rng(0), noise=0.0, lrs=WIDE_LRS, batches=WIDE_BATCHES)
    found = fit_best_settings(table, BOTH, PER)
    assert {group.optimum.status for group in found.groups} == {"used"}
    assert found.laws["lr"].exponents == pytest.approx({"N": -0.713, "D": 0.307}, abs=1e-6)
    assert found.laws["batch_tokens"].exponents == pytest.approx({"D": 0.571}, abs=1e-6)  # of D alone, as is usual
    assert found.laws["lr"].scale()[0] == pytest.approx(1.79, rel=1e-4)
    assert found.predict({"N": 3e9, "D": 1e12})["lr"][0] == pytest.approx(best_lr(3e9, 1e12), rel=1e-5)
    assert found.cost_of_factor(found.groups[0], "lr") == pytest.approx(np.expm1(0.008 * np.log(2) ** 2), rel=1e-4)
    losses = [np.exp(group.optimum.value) for group in found.groups]
    assert losses == pytest.approx([1.69 + 406.4 / N**0.34 + 410.7 / D**0.28 for N, D in sorted(SIZES)], rel=1e-6)


def test_seeds_shift_curves_and_not_their_optima():
    """Each seed has other losses; where a setting lacks a seed, plain means would tilt the parabola."""
    table = step_law_sweep(np.random.default_rng(1), noise=0.0, batches=[2e5], seeds=3)
    shifted = table["loss"] * np.exp(0.05 * table["seed"])
    table |= {"loss": shifted}
    some = ~((table["seed"] == 2) & (table["lr"] > 3e-3))
    found = fit_best_settings({name: column[some] for name, column in table.items()}, ["lr"], PER)
    (group,) = (group for group in found.groups if group.values == {"N": 4.3e8, "D": 4e9})
    tilted = np.log(best_lr(4.3e8, 4e9)) + 0.003 / 0.016 * np.log(2e5 / best_batch(4e9))  # of this batch
    assert group.optimum.at == pytest.approx([tilted], abs=1e-6) and group.optimum.settings == len(LRS)


@pytest.mark.parametrize("center", np.linspace(1.5, 2.5, 8))
def test_seeds_whose_means_lie_on_the_surface_leave_the_noise_of_the_seeds(center):
    """At each setting one seed is 0.01 above, one 0.01 below: rounding says whether the means miss by more than 0."""
    x, seed = np.repeat(np.log([1, 2, 4, 8, 16]), 2), np.tile([0, 1], 5)
    noise = 0.01 * np.repeat([1, -1, -1, 1, 1], 2) * np.tile([1, -1], 5)
    (_,), found = optima.find_optima([Rows(x[:, None], 1 + 0.02 * (x - center) ** 2 + noise, seed)], ["lr"])
    offsets = 10 * 0.002**2  # what the two seeds differ by over all, 0.004, is theirs and no noise
    assert found.seeds_only and found.sd == pytest.approx(np.sqrt((10 * 0.01**2 - offsets) / (10 - 3 - 1)), rel=1e-6)


def test_one_groups_interval_is_the_delta_methods_with_students_t():
    """By hand: a parabola by numpy's polyfit, the vertex -b/2a, its variance from polyfit's covariance."""
    random = np.random.default_rng(3)
    x = np.log(WIDE_LRS)
    y = 1.0 + 0.01 * (x + 6.5) ** 2 + 0.003 * random.standard_normal(len(x))
    (optimum,), noise = optima.find_optima([Rows(x[:, None], y, np.zeros(len(x), int))], ["lr"])
    (a, b, _), covariance = np.polyfit(x, y, 2, cov=True)
    slopes = np.array([b / (2 * a**2), -1 / (2 * a)])
    assert optimum.at == pytest.approx([-b / (2 * a)]) and optimum.df == len(x) - 3
    assert optimum.standard_errors == pytest.approx([np.sqrt(slopes @ covariance[:2, :2] @ slopes)])
    assert np.isinf(noise.window).all() and noise.sd == pytest.approx(
        np.std(y - np.polyval((a, b, _), x)) * (15 / 12) ** 0.5
    )


@pytest.mark.parametrize("case", ["edge", "few", "flat", "down"])
def test_groups_that_have_no_optimum_are_named_with_the_reason(case):
    random = np.random.default_rng(0)
    table = step_law_sweep(random, batches=[2e5], noise=0.0005)
    first = (table["N"] == 2.1e8) & (table["D"] == 4e9)
    keep, loss = np.ones(len(first), bool), table["loss"].copy()
    if case == "edge":
        keep = ~first | (table["lr"] < 1.7e-3)
    if case == "few":
        keep = ~first | (table["lr"] > 1.7e-3)
    if case == "flat":
        loss[first] = 2 + 0.001 * random.standard_normal(first.sum())
    if case == "down":
        loss[first] = 2 - 0.2 * np.log(table["lr"][first]) ** 2 / 50
    found = fit_best_settings({name: column[keep] for name, column in (table | {"loss": loss}).items()}, ["lr"], PER)
    group = next(group for group in found.groups if group.values == {"N": 2.1e8, "D": 4e9})
    status, why = {
        "edge": ("edge", "its best lr lies at the largest tried or beyond"),
        "few": ("few", "2 values of lr; an optimum needs 3"),
        "flat": ("flat", "bend"),
        "down": ("flat", "the losses do not bend upwards"),
    }[case]
    assert group.optimum.status == status and why in group.optimum.why
    assert found.laws["lr"].interval("N")[1] < -0.5


def test_a_bound_counts_by_what_it_says_and_not_by_the_end_of_the_grid():
    """A Tobit model's likelihood has its top where this fit ends; a bound far on the safe side changes nothing."""
    random = np.random.default_rng(4)
    z = np.geomspace(1, 100, 9)
    y = 0.5 * np.log(z) + 0.1 * random.standard_normal(9)
    errors, side = np.full(9, 0.1), np.zeros(9)
    plain = law_lib.fit_setting_law("lr", {"D": z[:-1]}, y[:-1], errors[:-1], 0.9)
    side[-1] = 1
    y[-1] = 0.5 * np.log(z[-1]) - 2  # far below the law: what is above it is no news
    loose = law_lib.fit_setting_law("lr", {"D": z}, y, errors, 0.9, side)
    assert loose.coefficients == pytest.approx(plain.coefficients, abs=1e-6) and loose.df == pytest.approx(plain.df)
    y[-1] = 0.5 * np.log(z[-1]) + 0.3
    tight = law_lib.fit_setting_law("lr", {"D": z}, y, errors, 0.9, side)
    design = np.column_stack([np.ones(9), np.log(z) - tight.centre])

    def likelihood(coefficients):
        t = (y - design @ coefficients) / np.sqrt(errors**2 + tight.scatter**2)
        return stats.norm.logpdf(t[:-1]).sum() + stats.norm.logsf(t[-1])

    top = likelihood(tight.coefficients)
    steps = 1e-3 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1]])
    assert all(likelihood(tight.coefficients + step) < top for step in steps)
    assert tight.coefficients[1] > plain.coefficients[1]


def test_the_law_of_equal_errors_is_least_squares_with_students_interval():
    """With one error for all, Paule-Mandel and Knapp-Hartung are ordinary least squares: scipy's linregress."""
    random = np.random.default_rng(2)
    z = np.geomspace(1e9, 1e11, 7)
    y = 0.3 * np.log(z) + 0.2 * random.standard_normal(7)
    fitted = law_lib.fit_setting_law("lr", {"D": z}, y, np.full(7, 0.05), 0.9)
    line = stats.linregress(np.log(z), y)
    half = stats.t.ppf(0.95, 5) * line.stderr
    assert fitted.exponents["D"] == pytest.approx(line.slope)
    assert fitted.interval("D") == pytest.approx((line.slope - half, line.slope + half))
    variance = np.sum((y - line.intercept - line.slope * np.log(z)) ** 2) / 5
    assert fitted.scatter**2 + 0.05**2 == pytest.approx(variance)
    assert fitted.predict({"D": 1e12}, new=False)[1] > fitted.predict({"D": 1e12})[1]  # a new optimum scatters, too


def test_an_unsymmetric_curve_is_fitted_near_its_lowest_point_only():
    """A wall at large learning rates: through all of it the parabola's vertex is off by .3, near the lowest not."""
    x = np.log(WIDE_LRS)
    random = np.random.default_rng(6)
    groups = []
    for middle in np.linspace(-6.8, -5.9, 8):
        wall = 0.05 * np.maximum(x - middle - 1.0, 0) ** 3
        y = 1 + 0.01 * (x - middle) ** 2 + wall + 0.0005 * random.standard_normal(len(x))
        groups.append(Rows(x[:, None], y, np.zeros(len(x), int)))
    located, noise = optima.find_optima(groups, ["lr"])
    off = np.array([each.at[0] for each in located]) - np.linspace(-6.8, -5.9, 8)
    whole = [surface.fit_surface(rows, rows.x.mean(axis=0), False).at[0] for rows in groups]
    assert np.isfinite(noise.window).all() and np.abs(off).max() < 0.15
    assert np.abs(whole - np.linspace(-6.8, -5.9, 8)).max() > 0.3


def test_a_cube_that_all_groups_share_does_not_move_their_optima():
    """Losses rise faster at large lr, in every group: each parabola alone is off by as much, and so was their mean."""
    x, random, middles = np.log(LRS), np.random.default_rng(7), np.linspace(-6.9, -6.2, 8)
    groups = [
        Rows(
            x[:, None],
            1 + 0.01 * (x - m) ** 2 + 0.002 * (x - m) ** 3 + 2e-5 * random.standard_normal(5),
            np.zeros(5, int),
        )
        for m in middles
    ]
    located, _ = optima.find_optima(groups, ["lr"])
    alone = [surface.fit_surface(rows, rows.x.mean(axis=0), False).at[0] for rows in groups]
    assert abs(np.mean([each.at[0] for each in located] - middles)) < 0.015 < 0.02 < abs(np.mean(alone - middles))


def test_columns_that_grow_together_have_no_exponents_of_their_own():
    sizes = [(N, 20 * N) for N in np.geomspace(1e8, 1e9, 6)]
    table = step_law_sweep(np.random.default_rng(0), sizes=sizes, batches=[2e5], lrs=WIDE_LRS)
    found = fit_best_settings(table, ["lr"], PER)
    assert not found.laws and "grow together" in found.refused["lr"] and "--over=lr=N" in found.refused["lr"]
    alone = fit_best_settings(table, ["lr"], PER, {"lr": ["N"]}).laws["lr"]
    tilt = 0.003 / 0.016 * 0.571  # the batch stays, so the best lr falls as the best batch grows
    low, high = alone.interval("N")
    assert low < -0.713 + 0.307 - tilt < high


def test_too_few_groups_have_no_law_and_one_size_no_exponent():
    sizes = [(4.3e8, 4e9), (4.3e8, 1e10), (4.3e8, 4e10)]
    three = fit_best_settings(step_law_sweep(np.random.default_rng(0), 0.0002, sizes=sizes, batches=[2e5]), ["lr"], PER)
    assert three.laws["lr"].columns == ("D",)
    two = fit_best_settings(
        step_law_sweep(np.random.default_rng(0), 0.0002, sizes=sizes[:2], batches=[2e5]), ["lr"], PER
    )
    assert two.refused["lr"].startswith("2 groups have a best lr inside what was tried; a law of D needs 3; N does not")


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((-0.8, -0.6), "identified"),
        ((-0.1, 0.2), "not identified: it may be zero, or of either sign"),
        ((0.02, 0.5), "not identified: its sign is known, its size hardly"),
    ],
)
def test_verdicts(interval, verdict):
    assert best_lib.judge_exponent(*interval) == verdict


def test_values_that_differ_by_a_rounded_step_are_one_group():
    table = step_law_sweep(np.random.default_rng(0), batches=[2e5])
    table["D"] = table["D"] * (1 + 0.002 * np.random.default_rng(1).random(len(table["D"])))
    found = fit_best_settings(table, ["lr"], PER)
    assert len(found.groups) == len(SIZES) and found.merged == ("D",)
    table["D"] = np.geomspace(1e9, 1e11, len(table["D"]))  # these chain: each stands for itself
    assert len(fit_best_settings(table | {"N": 0 * table["N"] + 1e9}, ["lr"], PER).groups) == len(table["D"])


@pytest.mark.parametrize(
    ("best_of", "per", "over", "message"),
    [
        (["lr", "lr"], ["N"], {}, "lr is named twice"),
        (["lr"], ["lr"], {}, "lr is named twice"),
        (["loss"], ["N"], {}, "not loss: it is what they are judged by"),
        (["batch"], ["N"], {}, "the table has no batch"),
        ([], ["N"], {}, "give both"),
        (["lr"], ["N"], {"batch": ["N"]}, "--best-of does not have batch"),
        (["lr"], ["N"], {"lr": ["D"]}, "--per does not have D"),
    ],
)
def test_mistakes(best_of, per, over, message):
    table = {"N": [1e8, 1e9], "D": [1e9, 1e9], "lr": [1e-3, 1e-3], "loss": [2.0, 3.0]}
    with pytest.raises(BadInput, match=message):
        fit_best_settings(table, best_of, per, over)


def covered(studies, **options):
    """{interval: in how many of the studies it holds the truth}, and the groups at an edge in each."""
    counts, edges = {}, []
    for seed in range(studies):
        random = np.random.default_rng(seed)
        found = fit_best_settings(step_law_sweep(random, **options), BOTH, PER)
        edges.append(len(found.with_status("edge")))
        off = np.exp(options.get("scatter", 0.0) * random.standard_normal(2))  # of the new size's own optimum
        at, lr, batch = {"N": 3e9, "D": 3e11}, found.laws["lr"], found.laws["batch_tokens"]
        inside = {
            "p": (lr.interval("N"), -0.713), "q": (lr.interval("D"), 0.307), "c": (lr.scale()[1:], 1.79),
            "batch q": (batch.interval("D"), 0.571), "batch c": (batch.scale()[1:], 0.58),
            "new lr": (lr.predict(at)[1:], best_lr(**at) * off[0]),
            "new batch": (batch.predict(at)[1:], best_batch(3e11) * off[1]),
        }  # fmt: skip
        for name, ((low, high), truth) in inside.items():
            counts[name] = counts.get(name, 0) + (low <= truth <= high)
    return counts, edges


@pytest.mark.full
def test_intervals_of_step_laws_constants_hold_them_with_edges_in_some_groups():
    """30 sweeps like Step Law's: were their coverage 90 %, a count below 21 would come once in a thousand times."""
    counts, edges = covered(30)
    assert stats.binom.cdf(20, 30, 0.9) < 0.001
    assert min(counts.values()) >= 21, counts
    assert np.mean(edges) > 1  # groups whose best lr lies at an end of what was tried


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {}, {"scatter": 0.1}, {"noise": 0.006, "lrs": WIDE_LRS}, {"lrs": LRS[1:], "noise": 0.001},
        {"lrs": WIDE_LRS[::3], "seeds": 3}, {"sizes": SIZES[::2], "lrs": WIDE_LRS},
        {"lopsided": 0.1, "lrs": WIDE_LRS},
    ],
    ids=["edges", "scatter", "noise", "more edges", "seeds", "6 groups", "lopsided"],
)  # fmt: skip
def test_nominal_90_percent_covers_85_percent_or_more(options):
    """And not all; with six groups they are wide, since a cube that so few can't tell may have its usual size."""
    counts, _ = covered(400, **options)
    assert stats.binom.ppf(0.01, 400, 0.85) <= min(counts.values()), counts
    assert max(counts.values()) <= 0.995 * 400, counts
