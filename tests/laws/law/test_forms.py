"""Each law against published numbers, or against another law that it contains."""

import numpy as np
import pytest

from scalelab.laws.fits.fitting import fit
from scalelab.laws.law import forms
from scalelab.laws.law.names import LAWS
from tests.laws.examples import published
from tests.laws.truths import TRUTHS, columns_for


def law(name, params=None, **columns):
    return LAWS[name](columns, TRUTHS[name] | (params or {}))


@pytest.mark.parametrize(("N", "D", "loss"), [(6.34e9, 242e9, 2.2256440889984477), (8.67e9, 178e9, 2.2269634075087867)])
def test_muennighoffs_own_losses(N, D, loss):
    """Their README: two allocations of one budget on 25 billion unique tokens."""
    assert float(law("data_constrained", N=N, D=D, U=25e9)) == pytest.approx(loss, abs=1e-10)


def test_repeated_data_are_worth_less_and_fresh_data_are_chinchillas():
    fresh = columns_for("chinchilla")
    same = {name: TRUTHS["data_constrained"][name] for name in TRUTHS["chinchilla"]}
    # Where N is below the best size for D and no token is repeated, nothing is discounted.
    fresh["D"] = np.maximum(fresh["D"], 1e4 * fresh["N"])
    plain = law("chinchilla", same, **fresh)
    np.testing.assert_allclose(law("data_constrained", **fresh, U=fresh["D"]), plain, rtol=1e-12)
    assert (law("data_constrained", **fresh, U=fresh["D"] / 10) > plain).all()
    tokens = np.array([25e9, 50e9, 100e9, 1e15])
    worth = np.asarray(forms.effective_data(tokens, 25e9, 15.0))
    assert worth[0] == 25e9 and (np.diff(worth) > 0).all() and worth[-1] == pytest.approx(16 * 25e9)


def test_kaplans_published_constants():
    """Kaplan et al. 2020: with unlimited data L = (N_c/N)^alpha_N, with unlimited parameters L = (D_c/D)^alpha_D."""
    constants = published("kaplan", "L(N,D)")
    truth = {name: constants[name] for name in ("N_c", "D_c", "alpha_N", "alpha_D")}
    assert truth == TRUTHS["kaplan"]
    assert float(law("kaplan", N=1e9, D=1e40)) == pytest.approx((6.4e13 / 1e9) ** 0.076, rel=1e-9)
    assert float(law("kaplan", N=1e40, D=1e10)) == pytest.approx((1.8e13 / 1e10) ** 0.103, rel=1e-3)


def test_gamma_of_one_is_chinchilla():
    columns = columns_for("chinchilla")
    same = TRUTHS["chinchilla"]
    np.testing.assert_allclose(law("chinchilla_gamma", same | {"gamma": 1.0}, **columns), law("chinchilla", **columns))


def test_overtraining_is_chinchilla_with_one_exponent():
    """C = 6 N D and D = M N turn A/N^2eta + B/D^2eta into Gadre's form, with a = A 6^eta and b = B 6^eta."""
    N, D = np.array([1e8, 1e9, 1e10]), np.array([2e10, 2e9, 6e11])
    eta, a, b = (TRUTHS["overtraining"][name] for name in ("eta", "a", "b"))
    same = {"E": 1.51, "A": a / 6**eta, "B": b / 6**eta, "alpha": 2 * eta, "beta": 2 * eta}
    result = law("overtraining", C=6 * N * D, M=D / N)
    np.testing.assert_allclose(result, law("chinchilla", same, N=N, D=D), rtol=1e-12)


def test_downstream_error_starts_at_epsilon():
    assert float(law("downstream", loss=1e3)) == pytest.approx(0.85)
    assert float(law("downstream", loss=2.5)) == pytest.approx(0.85 - 2.08 * np.exp(-0.756 * 2.5))


def test_farseer_by_hand():
    """At a billion parameters every power of N is one."""
    t = TRUTHS["farseer"]
    expected = np.exp(t["a3"] + t["b3"]) + np.exp(t["a2"] + t["b2"]) * 100.0 ** -np.exp(t["a1"] + t["b1"])
    assert float(law("farseer", N=1e9, D=100e9)) == pytest.approx(expected, rel=1e-12)


def test_farseer_in_counts_is_another_law_in_d_alone():
    """The unit of N rescales a1, a2 and a3; that of D is a factor, to an exponent that depends on N."""
    t, n, d = TRUTHS["farseer_counts"], 2e9, 3e10
    exponent = np.exp(t["a1"] * n ** t["alpha"] + t["b1"])
    expected = np.exp(t["a3"] * n ** t["gamma"] + t["b3"]) + np.exp(t["a2"] * n ** t["beta"] + t["b2"]) / d**exponent
    assert float(law("farseer_counts", N=n, D=d)) == pytest.approx(expected, rel=1e-12)
    powers = (("a1", "alpha"), ("a2", "beta"), ("a3", "gamma"))
    in_billions = t | {a: t[a] * 1e9 ** t[power] for a, power in powers}
    assert float(law("farseer", in_billions, N=n, D=d * 1e9)) == pytest.approx(expected, rel=1e-12)


def test_step_laws_published_optimum():
    """Li et al. 2025: 1.79 N^-.713 D^.307 and .58 D^.571 for a billion parameters and 100 billion tokens."""
    assert float(law("step_law_lr", N=1e9, D=1e11)) == pytest.approx(1.79 * 10 ** (-0.713 * 9 + 0.307 * 11), rel=1e-12)
    assert float(law("step_law_batch", D=1e11)) == pytest.approx(0.58 * 10 ** (0.571 * 11), rel=1e-12)


def test_a_broken_law_has_one_slope_before_and_another_after():
    t = TRUTHS["broken_power"]
    C = np.array([1e3, 1e4, 1e40, 1e41])
    above = np.log10(law("broken_power", {"E": 0.0}, C=C))
    assert above[1] - above[0] == pytest.approx(-t["alpha"], abs=1e-9)
    assert above[3] - above[2] == pytest.approx(-t["alpha"] - t["shift"], abs=1e-9)


def test_width_and_depth_add_two_terms():
    columns = columns_for("width_depth")
    plain = law(
        "chinchilla",
        {name: TRUTHS["width_depth"][name] for name in TRUTHS["chinchilla"]},
        N=columns["N"],
        D=columns["D"],
    )
    added = 20.0 / columns["width"] ** 0.7 + 1.5 / columns["depth"] ** 0.9
    np.testing.assert_allclose(law("width_depth", **columns), plain + added, rtol=1e-12)


def test_many_bits_are_chinchilla_and_few_a_smaller_model():
    """Kumar et al. 2024: one bit of weights is like N (1 - exp(-1/gamma_w)) parameters; the other parts likewise."""
    columns = columns_for("chinchilla")
    same = {name: TRUTHS["precision"][name] for name in TRUTHS["chinchilla"]}
    plain = law("chinchilla", same, **columns)
    np.testing.assert_allclose(law("precision", **columns, P_w=1e3, P_a=1e3, P_kv=1e3), plain, rtol=1e-12)
    for bits in ("P_w", "P_a", "P_kv"):
        many = {"P_w": 1e3, "P_a": 1e3, "P_kv": 1e3, bits: 3.0}
        size = columns["N"] * (1 - np.exp(-3.0 / TRUTHS["precision"][bits.replace("P", "gamma")]))
        smaller = law("chinchilla", same, **columns | {"N": size})
        np.testing.assert_allclose(law("precision", **columns, **many), smaller, rtol=1e-12)
        assert (smaller > plain).all()


def test_a_huge_vocabulary_adds_nothing():
    columns = columns_for("chinchilla")
    t = TRUTHS["vocabulary"]
    plain = law("chinchilla", {name: t[name] for name in TRUTHS["chinchilla"]}, **columns)
    np.testing.assert_allclose(law("vocabulary", **columns, N_v=1e200), plain, rtol=1e-12)
    assert float(law("vocabulary", N=1e300, D=1e300, N_v=1e6)) == pytest.approx(0.6 + 20 / 1e6**0.3)


def test_the_factor_of_a_mixture_law_is_in_its_exponents():
    """Ye et al. 2024, eq. 1: c + k exp(sum of t_j r_j) with shares that sum to one."""
    r = np.random.default_rng(0).dirichlet((2, 2, 2), 9).T
    t, k = np.array([-2.0, 0.3, -0.6]), 1.7
    expected = 1.5 + k * np.exp(t @ r)
    inside = dict(zip(("t1", "t2", "t3"), t + np.log(k), strict=True))
    np.testing.assert_allclose(law("mixture", inside, r1=r[0], r2=r[1], r3=r[2]), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["vocabulary", "mixture"])
def test_laws_of_one_more_axis_come_back(name):
    """From simulated runs with a noise of 1e-5 (precision: with every law in `make test-slow`, test_testing.py)."""
    columns, random = columns_for(name, 256), np.random.default_rng(0)
    loss = law(name, **columns) * np.exp(1e-5 * random.standard_normal(256))
    fitted = fit({**columns, "loss": loss}, name, objective="mse_log", bootstrap=0, identify=False)
    assert fitted.params == pytest.approx(TRUTHS[name], rel=0.02, abs=0.01)
