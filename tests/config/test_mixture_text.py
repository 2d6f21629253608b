"""What a config says of sources: exact shares, and one line for each way of saying it wrongly."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab import config as config_lib
from scalelab.config import default_tree, mixture_text, override
from scalelab.errors import BadInput


def test_the_grammar():
    assert mixture_text.parse_mixture("") == mixture_text.parse_mixture(" ") == ()
    assert mixture_text.parse_mixture("web=1/3, code=2/3 ;8_000: hq=1") == (
        mixture_text.MixtureStage(0, {"web": Fraction(1, 3), "code": Fraction(2, 3)}),
        mixture_text.MixtureStage(8000, {"hq": Fraction(1)}),
    )
    assert mixture_text.parse_mixture("0: a=0.1,b=0.2,c=7e-1")[0].shares["c"] == Fraction(7, 10)  # decimals are exact
    assert mixture_text.parse_unique_tokens("1e6") == {"": 10**6} and mixture_text.parse_unique_tokens("") == {}
    assert mixture_text.parse_unique_tokens("web=1e6,code=2000") == {"web": 10**6, "code": 2000}


@pytest.mark.full
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8).filter(any))
def test_whatever_sums_to_one_is_taken_as_said(parts):
    wanted = {f"s{i}": Fraction(part, sum(parts)) for i, part in enumerate(parts)}
    text = ",".join(f"{name}={share}" for name, share in wanted.items())
    assert mixture_text.parse_mixture(text)[0].shares == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("web=0.7,code=0.2", "sum to 0.9, not 1; e.g. web=7/9,code=2/9"),
        ("web=0.333,code=0.333,hq=0.333", "sum to 0.999, not 1; e.g. NAME=1/3"),
        ("web=0,code=0", "sum to 0, not 1"),
        ("web=0.5,web=0.5", "'web' is named twice"),
        ("web", "'web' is not a name and a number"),
        ("web=a lot", "'web=a lot' is not a name and a number"),
        ("web=-1,code=2", "'web=-1' is not a name and a number"),
        ("web=1/0", "'web=1/0' is not a name and a number"),
        ("web=nan", "'web=nan' is not a name and a number"),
        ("web=1; code=1", "'code=1' has no step; write it as STEP: code=1"),
        ("web=1; 5: code=1; 5: web=1", "step 5 comes after step 5: steps have to rise; nearest: 6"),
        ("5: web=1", "begins at step 5"),
        ("web=1; soon: code=1", "'soon' is not a step"),
        ("web=1; -4: code=1", "'-4' is not a step"),
        ("web=1; 500: code=1", "changes at step 500, and the run ends with step 499; nearest: 499"),
    ],
)
def test_a_mixture_that_cannot_be_is_one_line(text, message):
    with pytest.raises(BadInput) as refused:
        config_lib.resolve(override(default_tree(), {"data.mixture": text, "optim.peak_lr": 1e-3}))
    assert message in str(refused.value) and "\n" not in str(refused.value) and "data.mixture" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "0 is not a number of tokens; nearest: 1"),
        ("1.5", "1.5 is not a number of tokens; nearest: 2"),
        ("web=many", "'web=many' is not a name and a number"),
        ("web=1e6,web=1e5", "named twice"),
    ],
)
def test_so_is_a_cap(text, message):
    with pytest.raises(BadInput) as refused:
        config_lib.resolve(override(default_tree(), {"data.unique_tokens": text, "optim.peak_lr": 1e-3}))
    assert message in str(refused.value) and "data.unique_tokens" in str(refused.value)


def test_what_two_mixtures_share_before_a_step():
    long, short = "a=0.5,b=0.5; 10: a=1; 20: b=1", "b=1/2,a=1/2; 10: a=1,b=0"
    assert mixture_text.same_mixture_before(long, short, 20) and not mixture_text.same_mixture_before(long, short, 21)
    assert not mixture_text.same_mixture_before("a=1", "b=1", 1) and not mixture_text.same_mixture_before("", "a=1", 5)
