"""Laws of models with experts: published values, limits, and planted parameters that a fit gives back."""

import numpy as np
import pytest

from scalelab.laws.fits.fitting import fit
from scalelab.laws.law import chinchilla_optimum, expert_forms
from scalelab.laws.law.names import LAWS
from tests.laws.truths import TRUTHS, columns_for
from tests.quick import one_in, others_slow


def law(name, params=None, **columns):
    return LAWS[name](columns, TRUTHS[name] | (params or {}))


def grid(**axes):
    return dict(zip(axes, map(np.ravel, np.meshgrid(*axes.values())), strict=True))


def test_which_parameters_a_law_counts():
    sizes = {name: each.size for name, each in LAWS.items() if each.size}
    assert sizes == {"routed": "active", "expert_count": "active", "granularity": "total", "sparsity": "total"}


def test_experts_saturate_at_both_ends():
    """Clark et al. 2022: one expert counts as E_start, ever more as E_max, and some in between nearly as themselves."""
    E = np.array([1.0, 32.0, 1e12])
    first, middle, last = expert_forms.saturated_experts(E, 1.847, 314.478)
    assert first == pytest.approx(1.847, rel=1e-12) and last == pytest.approx(314.478, rel=1e-6)
    by_hand = 1 / (1 / (31 + 1 / (1 / 1.847 - 1 / 314.478)) + 1 / 314.478)
    assert middle == pytest.approx(by_hand, rel=1e-12)


def test_one_expert_is_a_dense_model():
    N, D = np.geomspace(1e7, 1e10, 5), np.geomspace(1e9, 1e12, 5)
    t = TRUTHS["routed"]
    start = np.log10(t["E_start"])
    dense = 10 ** (t["b"] * start + t["d"]) * N ** (t["a"] + t["c"] * start)
    np.testing.assert_allclose(law("routed", N=N, experts=np.ones(5)), dense, rtol=1e-12)
    for experts in (1.0, 8.0):
        same = {k: float(v) for k, v in expert_forms.chinchilla_of(experts, TRUTHS["expert_count"]).items()}
        plain = LAWS["chinchilla"]({"N": N, "D": D}, same)
        np.testing.assert_allclose(law("expert_count", N=N, D=D, experts=np.full(5, experts)), plain, rtol=1e-6)
    t = TRUTHS["sparsity"]
    chinchilla = {"E": t["e"] + t["c"], "A": t["a"], "B": t["b"], "alpha": t["alpha"], "beta": t["beta"]}
    plain = LAWS["chinchilla"]({"N": N, "D": D}, chinchilla) + t["d"] / N ** t["gamma"]
    np.testing.assert_allclose(law("sparsity", N=N, D=D, sparsity=np.zeros(5)), plain, rtol=1e-12)


def test_one_granule_is_chinchillas_law_and_finer_ones_are_better():
    columns = columns_for("chinchilla")
    t = TRUTHS["granularity"]
    same = {"E": t["c"], "A": t["a"] + t["g"], "B": t["b"], "alpha": t["alpha"], "beta": t["beta"]}
    one = law("granularity", **columns, granularity=np.ones(32))
    np.testing.assert_allclose(one, LAWS["chinchilla"](columns, same), rtol=1e-12)
    assert (law("granularity", **columns, granularity=np.full(32, 16.0)) < one).all()


def test_more_experts_are_better_up_to_the_cutoff():
    """Clark et al. 2022: routing helps while b + c log10 N is negative, below 1e12 parameters for S-BASE."""
    E = 2.0 ** np.arange(10)
    small, large = (law("routed", N=np.full(10, n), experts=E) for n in (1e9, 1e13))
    assert (np.diff(small) < 0).all() and (np.diff(large) > 0).all()


def test_leverage_of_the_published_design():
    """Tian et al. 2025, sec. 4.2.2: above 7 at 1e22 FLOPs, 3.1 % active, granularity 12, near the best; dense is 1."""
    G = np.array([8.0, 11.0, 12.0, 16.0, 64.0])
    values = law("leverage", activation=np.full(5, 0.031), granularity=G, C=np.full(5, 1e22))
    assert 7 < values[2] < 7.5 and values.argmax() == 1
    dense = law("leverage", activation=np.ones(1), granularity=np.full(1, 12.0), C=np.full(1, 1e22))
    assert float(dense[0]) == pytest.approx(1.0, abs=0.02)


def test_the_best_size_at_a_budget_is_that_of_chinchillas_law():
    """Ludziejewski et al. 2025, table 1: at 1e21 FLOPs, 8 experts, 3.8B active parameters and 44.3B tokens."""
    params = expert_forms.chinchilla_of(8.0, TRUTHS["expert_count"])
    best = chinchilla_optimum.optimal_allocation(chinchilla_optimum.ChinchillaParams(**params), 1e21)
    assert float(best.N) == pytest.approx(3.8e9, rel=0.02) and float(best.D) == pytest.approx(44.3e9, rel=0.02)


TWOS = 2.0 ** np.arange(10)
SPARSITIES = np.array([0, 0.5, 0.75, 0.9, 0.95, 0.98])
CASES = [
    ("leverage", grid(activation=1 / TWOS[1:8], granularity=TWOS[1:5], C=np.geomspace(1e18, 6e20, 4))),
    ("routed", grid(N=np.geomspace(1.5e7, 1.3e9, 7), experts=TWOS)),
    ("granularity", grid(N=np.geomspace(1.3e8, 3.7e9, 5), D=np.geomspace(16e9, 130e9, 4), granularity=TWOS[:5])),
    ("expert_count", grid(N=np.geomspace(5e7, 2.7e9, 5), D=np.geomspace(1e9, 1e11, 5), experts=TWOS[:7])),
    ("sparsity", grid(N=np.geomspace(5e8, 3e10, 5), D=np.geomspace(1e9, 3e11, 5), sparsity=SPARSITIES)),
]
CASES_BY_NAME = dict(CASES)


@pytest.mark.parametrize(("name", "columns"), one_in(9, others_slow(lambda name, _: name != "expert_count", CASES)))
def test_planted_parameters_come_back(name, columns):
    """Without noise to 1e-3; the certificate says that the starts agree."""
    exact = law(name, **columns)
    found = fit({**columns, LAWS[name].target: exact}, LAWS[name], bootstrap=0, identify=False)
    np.testing.assert_allclose(LAWS[name](columns, found.params), exact, rtol=1e-7)
    for param, value in TRUTHS[name].items():
        assert found.params[param] == pytest.approx(value, rel=1e-3), param
    assert found.best.certificate.converged


@pytest.mark.full
@pytest.mark.parametrize("name", others_slow(lambda name: name == "leverage", ["leverage", "routed"]))
def test_intervals_hold_what_was_planted(name):
    """Noise of .2 %, three seeds: of 90 % intervals few miss, and they are narrower than their parameters."""
    columns, misses, widths = dict(CASES_BY_NAME[name]), [], []
    exact = law(name, **columns)
    for seed in range(3):
        target = exact * np.exp(0.002 * np.random.default_rng(seed).standard_normal(len(exact)))
        found = fit({**columns, LAWS[name].target: target}, LAWS[name], bootstrap=60, seed=seed, identify=False)
        for param, (low, high) in found.to_json()["intervals"].items():
            value = TRUTHS[name][param]
            misses.append(not low <= value <= high)
            widths.append((high - low) / abs(value))
    assert sum(misses) <= len(misses) // 4, misses
    assert max(widths) < 2 and np.median(widths) < 0.5, widths
