"""Approach 2 on exact laws, on edges, and on Porian et al.'s own IsoFLOP points."""

import csv
import json

import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, allocation_exponents, optimal_allocation
from scalelab.laws.solve.optimum import FitError
from scalelab.laws.use.isoflop import fit_isoflop, group_budgets, profile_budget
from scalelab.laws.use.isoflop_minima import akima, parabola
from scalelab.laws.use.seed_noise import SeedNoise, measure_noise
from tests.laws.examples import BUDGETS, QUICKSTART_LIKE, published, study
from tests.tables import table_path

PORIAN_KEYS = ("dataset", "hparams", "warmup", "decay", "param_count", "val", "file")


def isoflop(params, sizes=9, method="akima", noise=0.0):
    N, _, loss = study(params, noise, sizes=sizes)
    return fit_isoflop(np.repeat(BUDGETS, sizes), N, loss, method)


@pytest.mark.parametrize("method", ["akima", "parabola"])
def test_exponent_of_an_exact_law(method):
    result = isoflop(QUICKSTART_LIKE, method=method)
    assert result.a == pytest.approx(float(allocation_exponents(QUICKSTART_LIKE)[0]), abs=0.005)
    assert all(p.interior for p in result.profiles) and result.edges == ()


@pytest.mark.parametrize("method", ["akima", "parabola"])
def test_a_parabola_is_recovered_by_both_methods(method):
    x = np.linspace(-1, 1, 9)
    result = profile_budget(1e12, 1e6 * np.exp(x), np.exp(2.0 + 0.3 * (x - 0.2) ** 2), method)
    assert np.log(result.N / 1e6) == pytest.approx(0.2, abs=1e-9 if method == "parabola" else 0.002)
    assert np.log(result.loss) == pytest.approx(2.0, abs=1e-6)


def test_interpolation_stays_right_where_a_parabola_is_biased():
    """A wide, lopsided profile (alpha = 3 beta): the parabola's vertex is off, as in the field's own data."""
    params = ChinchillaParams(1.5, 3000.0, 40.0, 0.9, 0.3)
    best = float(optimal_allocation(params, BUDGETS[2]).N)
    result = {method: isoflop(params, sizes=9, method=method).profiles[2].N / best for method in ("akima", "parabola")}
    assert abs(result["akima"] - 1) < 0.02 < 0.05 < abs(result["parabola"] - 1)


def test_porians_exponents():
    """All 15 experiments: interior Akima minima within .004 of the published unweighted exponents."""
    with table_path("porian/isoflop_points.csv").open() as file:
        rows = list(csv.DictReader(file))
    experiments = published("porian", "rows")
    assert len(experiments) == 15
    for golden in experiments:
        matching = [row for row in rows if all(row[key] == golden[key] for key in PORIAN_KEYS)]
        result = fit_isoflop(*([float(row[key]) for row in matching] for key in ("flops", "n", "loss")))
        assert sum(p.interior for p in result.profiles) == golden["nC"]  # theirs drops edge minima too
        assert result.a == pytest.approx(golden["gold_basic"], abs=0.004), golden


def test_an_edge_minimum_is_reported_and_not_used():
    N, _, loss = study(QUICKSTART_LIKE, sizes=9)
    C = np.repeat(BUDGETS, 9)
    mask = (BUDGETS[1] != C) | (np.arange(len(C)) % 9 < 4)  # the second budget keeps only sizes below its optimum
    result = fit_isoflop(C[mask], N[mask], loss[mask])
    assert [p.C for p in result.edges] == [pytest.approx(BUDGETS[1])]
    assert pytest.approx(N[mask & (BUDGETS[1] == C)].max()) == result.edges[0].N
    others = BUDGETS[1] != C
    assert result.a == fit_isoflop(C[others], N[others], loss[others]).a


def test_a_hill_has_no_interior_minimum():
    x = np.linspace(-1, 1, 7)
    for method in ("akima", "parabola"):
        result = profile_budget(1e12, np.exp(x), np.exp(2.0 - 0.3 * (x - 0.1) ** 2), method)
        assert not result.interior and np.log(result.N) == pytest.approx(-1)


def test_nearly_equal_budgets_are_one():
    C = np.array([1e12, 2.02e12, 1.01e12, 2e12, 0.99e12])
    labels = group_budgets(C)
    assert len(np.unique(labels)) == 2
    assert labels[0] == labels[2] == labels[4] == pytest.approx(1e12, rel=0.01)


def test_repeats_of_a_size_are_averaged():
    x = np.repeat(np.linspace(-1, 1, 5), 2)
    loss = np.exp(2 + 0.3 * x**2 + np.tile([0.01, -0.01], 5))
    assert profile_budget(1e12, np.exp(x), loss).loss == pytest.approx(np.exp(2), rel=1e-6)


def test_refusals():
    N, _, loss = study(QUICKSTART_LIKE, sizes=5)
    C = np.repeat(BUDGETS, 5)
    with pytest.raises(BadInput, match="did you mean 'akima'"):
        fit_isoflop(C, N, loss, "akina")
    with pytest.raises(BadInput, match="2 sizes"):
        fit_isoflop(C[:7], N[:7], loss[:7])
    with pytest.raises(BadInput, match=r"loss\[0\] = nan"):
        fit_isoflop(C, N, [float("nan"), *loss[1:]])
    low = np.arange(len(C)) % 5 < 3
    rising = np.repeat([np.arange(3.0)], 4, axis=0).ravel() + 2
    with pytest.raises(FitError, match="0 of 4 budgets"):
        fit_isoflop(C[low], N[low], rising)


def test_json_holds_what_a_plot_needs():
    block = json.loads(json.dumps(isoflop(QUICKSTART_LIKE).to_json()))
    first = block["budgets"][0]
    sizes, losses = first["curve"]
    assert len(sizes) == len(losses) and min(losses) == pytest.approx(first["loss"], rel=1e-3) and not first["edge"]
    assert block["coefficient"] * first["budget"] ** block["a"] == pytest.approx(first["N"], rel=0.05)


@pytest.mark.parametrize("method", [akima, parabola])
def test_minima_of_many_curves_are_those_of_each(method):
    """Against a dense grid over each curve alone: hills, slopes and bumps among them."""
    random = np.random.default_rng(3)
    x = np.sort(random.random(9)) * 6
    y = random.random((9, 200)) + np.outer(x - 3, random.standard_normal(200)) ** 2
    result = method(x, y)
    at = np.linspace(x[0], x[-1], 40_001)
    for i in range(200):
        grid = method(x, y[:, i : i + 1]).curve(at)[:, 0]
        assert result.value[i] <= grid.min() + 1e-12
        assert result.value[i] == pytest.approx(grid.min(), abs=1e-6)
        assert result.interior[i] == (x[0] < result.at[i] < x[-1])


def test_seed_noise_is_porians():
    noise = SeedNoise()
    assert noise.std([1.0, 3.0, 6.0, 9.0]) == pytest.approx([0.005, 0.005, 0.1, 0.1])
    middle = np.sqrt(3.0 * 6.0)  # halfway in logs
    assert noise.std(middle) == pytest.approx(np.sqrt(0.005 * 0.1))


def noisy_isoflop(noise, seed=0, method="akima", sizes=9):
    N, _, loss = study(QUICKSTART_LIKE, sizes=sizes)
    return fit_isoflop(np.repeat(BUDGETS, sizes), N, loss, method, noise=noise, resamples=300, seed=seed)


@pytest.mark.parametrize("method", ["akima", "parabola"])
def test_noise_gives_an_interval_that_grows_with_it(method):
    truth, _ = allocation_exponents(QUICKSTART_LIKE)
    quiet, loud = (noisy_isoflop(SeedNoise(low=low), method=method) for low in (0.0005, 0.005))
    for result in (quiet, loud):
        assert result.interval[0] < truth < result.interval[1]
        assert result.a == pytest.approx(truth, abs=np.ptp(result.interval))
    assert np.ptp(loud.interval) > 3 * np.ptp(quiet.interval)
    assert noisy_isoflop(None).interval is None


def test_a_noisy_budget_weighs_less():
    """One budget's losses above `hard`, its minimum pulled off by a quarter: weighted, the exponent hardly moves."""
    N, _, loss = study(QUICKSTART_LIKE, sizes=9)
    C = np.repeat(BUDGETS, 9)
    last = BUDGETS[-1] == C
    loss = np.where(last, loss + 8.0, loss)
    N = np.where(last, 1.25 * N, N)
    plain = fit_isoflop(C, N, loss)
    weighted = fit_isoflop(C, N, loss, noise=SeedNoise(low=1e-4, high=0.02))
    stds = [p.log_n_std for p in weighted.profiles]
    assert stds[-1] > 2 * max(stds[:-1])
    truth = allocation_exponents(QUICKSTART_LIKE)[0]
    assert abs(weighted.a - truth) < 0.6 * abs(plain.a - truth)


def test_no_minimum_is_known_better_than_a_third_of_the_spacing():
    N, _, loss = study(QUICKSTART_LIKE, sizes=9)
    result = profile_budget(BUDGETS[0], N[:9], loss[:9], noise=SeedNoise(low=1e-6))
    assert result.log_n_std == pytest.approx(0.33 * np.log(9) / 8)


def test_a_budget_whose_minimum_drowns_in_noise_is_an_edge():
    """Of three sizes a third of pure noise has its minimum at the middle one: less than half."""
    N, _, loss = (column[1:4] for column in study(QUICKSTART_LIKE, sizes=5))
    flat = 3.0 + 1e-4 * (loss - loss.min())
    assert profile_budget(BUDGETS[0], N, flat).interior
    lost = profile_budget(BUDGETS[0], N, flat, noise=SeedNoise(low=0.1))
    assert not lost.interior and lost.log_n_std is None


def test_four_repeats_of_a_size_halve_its_noise():
    N, _, loss = (column[:9] for column in study(QUICKSTART_LIKE, sizes=9))
    once, four = (
        profile_budget(BUDGETS[0], np.tile(N, k), np.tile(loss, k), "parabola", SeedNoise(low=0.002)) for k in (1, 4)
    )
    assert four.log_n.std() == pytest.approx(once.log_n.std() / 2, rel=0.05)


def test_every_budget_has_noise_of_its_own():
    first, second, *_ = (p.log_n for p in noisy_isoflop(SeedNoise(low=0.002), method="parabola").profiles)
    count = min(len(first), len(second))
    assert abs(np.corrcoef(first[:count], second[:count])[0, 1]) < 0.2


def parabolas(random, sigma, repeats=1, sizes=7):
    """(C, N, loss, the exponent of the minima): budgets whose log loss is a parabola in log N, with noise."""
    N = np.tile(np.repeat(np.exp(np.linspace(-1, 1, sizes)), repeats), 5) * np.repeat(
        1e7 * 2.0 ** np.arange(5), sizes * repeats
    )
    C = np.repeat(1e18 * 4.0 ** np.arange(5), sizes * repeats)
    log_loss = 1.0 + 0.03 * (np.log(N / 1e7) - 0.5 * np.log(C / 1e18)) ** 2
    return C, N, np.exp(log_loss + sigma * random.standard_normal(len(C)))


@pytest.mark.parametrize(("repeats", "source"), [(2, "repeats"), (1, "residuals")])
def test_noise_is_measured_in_the_table(repeats, source):
    """Variances are unbiased, and vary over tables as their degrees of freedom say."""
    random, sigma = np.random.default_rng(0), 0.003
    tables = [parabolas(random, sigma, repeats) for _ in range(150)]
    noises = [measure_noise(C, N, loss) for C, N, loss in tables]
    assert {noise.source for noise in noises} == {source}
    variances = np.array([noise.share**2 for noise in noises]) / sigma**2
    dof = noises[0].dof
    assert variances.mean() == pytest.approx(1.0, abs=4 * np.sqrt(2 / dof / 150))
    assert variances.var() == pytest.approx(2 / dof, rel=0.4)


def test_the_interval_from_measured_noise_covers_the_exponent():
    random, inside = np.random.default_rng(1), 0
    for _ in range(60):
        C, N, loss = parabolas(random, 0.003)
        noise = measure_noise(C, N, loss)
        low, high = fit_isoflop(C, N, loss, "parabola", noise, resamples=200, level=0.8).interval
        inside += low < 0.5 < high
    assert 39 <= inside <= 57  # 48 of 60, within three standard errors


def test_runs_of_one_seed_are_not_repeats():
    C, N, loss = parabolas(np.random.default_rng(2), 0.003, repeats=2)
    seeds = np.zeros(len(C))
    assert measure_noise(C, N, loss, seeds).source == "residuals"
    seeds[::2] = 1
    assert measure_noise(C, N, loss, seeds).source == "repeats"
    three = np.isin(N, np.unique(N[C[0] == C])[:3])
    with pytest.raises(BadInput, match="leave it out"):
        measure_noise(C[three], N[three], loss[three], np.zeros(three.sum()))
