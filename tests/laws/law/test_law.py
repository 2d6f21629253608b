"""What is read from a function's signature, and what is refused."""

import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.laws import Between, Coefficient, Exponent, Law, Scale, law_of
from scalelab.laws.law import law as law_lib
from scalelab.laws.law.names import LAWS, load_law


def mine(N, batch, *, E: Coefficient, alpha: Exponent, knee: Scale(1.0, 1e6), bend: Between(-1.0, 2.0)):
    """L = E + N^-alpha

    More words.
    """
    return E + N**-alpha + 0 * batch * knee * bend


def test_columns_and_kinds_come_from_the_signature():
    law = law_of(mine)
    assert (law.name, law.columns, law.target) == ("mine", ("N", "batch"), "loss")
    assert law.equation == "L = E + N^-alpha"
    assert law.linear == ["E"] and law.searched == ["alpha", "knee", "bend"]
    assert law.params["knee"] == law_lib.ParamKind("log", 1.0, 1e6, (1.0, 1e6))
    assert law.params["bend"].low == -1.0 and law.params["bend"].high == 2.0
    assert law_of(mine, target="bpb").target == "bpb"


def test_a_users_own_law_is_loaded_by_name():
    law = load_law("tests.laws.law.test_law:mine")
    assert isinstance(law, Law) and law.function is not None and law.name == "mine"
    assert load_law("chinchilla") is LAWS["chinchilla"]


def annotated_by_nothing(N, *, alpha):
    return N**alpha


def starred(*N, alpha: Exponent):
    return N[0] ** alpha


def no_columns(*, alpha: Exponent):
    return alpha


@pytest.mark.parametrize(
    ("function", "message"),
    [(annotated_by_nothing, "annotate alpha"), (starred, r"\*N is not a column"), (no_columns, "columns come first")],
)
def test_a_signature_that_says_too_little_is_refused(function, message):
    with pytest.raises(BadInput, match=message) as refusal:
        law_of(function)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chinchila", "did you mean 'chinchilla'"),
        ("no.such.module:fn", "No module named"),
        ("tests.laws.law.test_law:nothing", "has no 'nothing'"),
    ],
)
def test_a_law_that_is_none_is_refused(name, message):
    with pytest.raises(BadInput, match=message):
        load_law(name)


def test_values_are_float64_also_where_a_law_uses_jax_numpy():
    value = LAWS["downstream"]({"loss": np.array([2.1, 3.3])}, {"epsilon": 0.85, "k": 2.08, "gamma": 0.756})
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, 0.85 - 2.08 * np.exp(-0.756 * np.array([2.1, 3.3])), rtol=1e-15)
