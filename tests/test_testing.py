"""The contract of a law: every law of the table keeps it, and each broken one is told what is wrong with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.laws import Between, Coefficient, Exponent, Scale
from scalelab.laws.law.law import law_of
from scalelab.laws.law.names import LAWS
from scalelab.testing import check_law, law_checks
from scalelab.testing import law as law_contract
from tests.laws.truths import TRUTHS
from tests.quick import one_in

FIXED_UNITS = {  # in billions, in counts, in bits, and shares of one, by the law itself
    "farseer": ("N", "D"), "farseer_counts": ("N", "D"), "precision": ("P_w", "P_a", "P_kv"),
    "mixture": ("r1", "r2", "r3"), "parscale": ("P",), "routed": ("experts",), "expert_count": ("experts",),
    "sparsity": ("sparsity",), "leverage": ("activation",),
}  # fmt: skip


RANGES = {  # a weight decay over the usual ranges would vary by more than a law's target may
    "weight_decay": {"N": (1e8, 1e10), "D": (1e10, 1e11), "lr": (2e-3, 6e-3), "batch_tokens": (5e5, 2e6)},
}


# `make test-slow` takes the others, which need up to half a minute, and starts from found parameters.
QUICK = ("chinchilla", "kaplan", "saturating", "step_law_lr")
FULL = ("farseer",)  # the law with coordinates of its own, once in `make test-rest`


@pytest.mark.parametrize("known", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["published", "found"])
@pytest.mark.parametrize(
    "name",
    one_in(4, [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK + FULL)) for name in LAWS]),
)
def test_every_law_keeps_the_contract(name, known):
    """Noise-free recovery to 1e-6 at published parameters, and at the ones the points determine best."""
    truth = TRUTHS[name] if known else None
    report = check_law(LAWS[name], truth=truth, ranges=RANGES.get(name), fixed_units=FIXED_UNITS.get(name, ()))
    assert report.law == name and report.unidentified == ()
    assert report.prediction_error < 1e-9 and max(report.recovered.values()) < 1e-6
    assert set(report.units) == set(LAWS[name].columns) - {"U"} - set(FIXED_UNITS.get(name, ()))
    assert truth is None or report.truth == truth


def plain(N, *, E: Coefficient, A: Coefficient, alpha: Exponent):
    """L = E + A/N^alpha"""
    return E + A / N**alpha


def unannotated(N, *, E: Coefficient, alpha):
    return E + N**-alpha


def not_a_number(N, *, E: Coefficient, A: Coefficient, alpha: Exponent):
    return E + A / N**alpha + jnp.log(-N)


def negative(N, *, E: Coefficient, A: Coefficient, alpha: Exponent):
    return -E - A / N**alpha


def steep(N, *, A: Coefficient, alpha: Between(4.0, 6.0)):
    return A * N**alpha


def squared(N, *, E: Coefficient, A: Coefficient, alpha: Exponent):
    return E**2 + A / N**alpha


def crossed(N, D, *, A: Coefficient, B: Coefficient, alpha: Exponent, beta: Exponent):
    return (1 + A / N**alpha) * (1 + B / D**beta)


def stepped(N, *, E: Coefficient, A: Coefficient, alpha: Exponent):
    return E + A / N**alpha + jnp.where(alpha > 0.4, 0.1, 0.0)


def rounded(N, *, E: Coefficient, A: Coefficient, alpha: Exponent):
    return E + A / N ** (jnp.round(alpha * 1e7) / 1e7)


def wrong_slope(N, *, E: Coefficient, A: Coefficient, alpha: Exponent):
    return E + A / N**alpha * (1 + 0.1 * jax.lax.stop_gradient(alpha))


def in_billions(N, D, *, E: Coefficient, A: Coefficient, B: Coefficient, alpha: Exponent, beta: Exponent):
    return E + A / N**alpha + B / (1 + D / 1e10) ** beta


def narrow(N, *, N_c: Scale(1e8, 1e9), alpha: Exponent):
    return (N_c / N) ** alpha


def of_the_mean(N, *, E: Coefficient, A: Coefficient, alpha: Exponent):
    return E + A / (N / jnp.exp(jnp.mean(jnp.log(N)))) ** alpha


def one_number(N, *, E: Coefficient, A: Coefficient, alpha: Exponent):
    return jnp.sum(E + A / N**alpha)


def branching(N, *, E: Coefficient, A: Coefficient, alpha: Exponent):
    return E + A / N ** (alpha if np.size(alpha) == 1 else alpha[:1])


def stuck(N, *, E: Coefficient, first: Between(1.0, 300.0), second: Between(1.0, 300.0), third: Between(1.0, 300.0)):
    waves = jnp.sin(first * jnp.log(N)) + jnp.sin(second * jnp.log(N)) + jnp.sin(third * jnp.log(N))
    return E * (1 + 0.3 * waves)


@pytest.mark.parametrize(
    ("law", "message"),
    one_in(
        6,
        [
            (unannotated, "annotate alpha"),
            (not_a_number, "not finite"),
            (negative, "zero or negative"),
            (steep, "more than 1,000 times"),
            (squared, "not linear in E: make it a Scale"),
            (crossed, "not linear in A times B"),
            (stepped, r"jumps where alpha is near 0\.(39|40)"),
            (rounded, "autodiff and finite differences by alpha differ"),
            (wrong_slope, "autodiff and finite differences by alpha differ"),
            (in_billions, r"D in another unit \(x 0.001\) .* fixed_units=\('D',\)"),
            (narrow, r"N in another unit"),
            (of_the_mean, "depends on the other rows"),
            (one_number, r"48 rows give values of shape \(\)"),
            (branching, "don't broadcast"),
            (stuck, "noise-free values"),
        ],
    ),
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_law_is_told_what_is_wrong(law, message):
    with pytest.raises(AssertionError, match=message) as refusal:
        check_law(law)
    assert "\n" not in str(refusal.value)
    assert law.__name__ in str(refusal.value)


def test_a_law_is_checked_first_where_its_points_determine_it_best():
    """By the closed form of log L's slopes, relative by E and by the term at the mean log N: their least eigenvalue."""
    N, least = np.geomspace(1e6, 1e9, law_checks.CHECK_ROWS), []
    for at in law_contract._candidates(law_of(plain), {"N": N}, None):
        term = at["A"] * N ** -at["alpha"]
        slopes = np.stack([at["E"] + 0 * N, term, -term * (np.log(N) - np.log(N).mean())]) / (at["E"] + term)
        least.append(np.linalg.eigvalsh(slopes @ slopes.T)[0])
    assert len(least) == 5 and least == sorted(least, reverse=True)


@pytest.mark.full
def test_a_plain_law_passes_and_a_declared_unit_is_let_be():
    assert check_law(plain).recovered["alpha"] < 1e-9
    assert set(check_law(in_billions, fixed_units=("D",)).units) == {"N"}


@pytest.mark.full
def test_parameters_that_only_count_together_are_named():
    """A / (s N)^alpha: predictions are exact, but A and s can't be told apart."""

    def doubled(N, *, E: Coefficient, A: Coefficient, s: Scale(1e-3, 1e3), alpha: Exponent):
        return E + A / (s * N) ** alpha

    report = check_law(doubled, truth={"E": 1.5, "A": 300.0, "s": 2.0, "alpha": 0.3})
    assert report.prediction_error < 1e-9
    assert {"A", "s"} >= set(report.unidentified) and report.unidentified
    assert report.recovered["alpha"] < 1e-6


def test_columns_that_are_not_known_need_a_range():
    def by_rank(rank, *, E: Coefficient, A: Coefficient, alpha: Exponent):
        return E + A * rank**alpha

    with pytest.raises(BadInput, match=r"ranges=\{'rank': "):
        check_law(by_rank)
    assert check_law(by_rank, ranges={"rank": (8, 4096)}).prediction_error < 1e-9
