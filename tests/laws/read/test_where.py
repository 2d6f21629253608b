"""Subsets by expression: against Python's own evaluation, and everything that must not be evaluated."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalelab.errors import BadInput
from scalelab.laws.read.where import filter_rows

ROWS = [
    {"N": 1e8, "D": 2e9, "seed": 0, "dataset": "c4", "lr": None},
    {"N": 3e8, "D": 2e9, "seed": 1, "dataset": "rpj", "lr": 0.1},
    {"N": 3e8, "D": 9e10, "seed": 0, "dataset": "c4", "lr": 0.3},
]


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("N > 1e8", [1, 2]),
        ("N > 1e8 and D/N < 100", [1]),
        ("dataset == 'c4' or seed == 1", [0, 1, 2]),
        ("not dataset == 'c4'", [1]),
        ("1e8 < N <= 3e8 and seed != 1", [2]),
        ("(N - 1e8) * 2 ** 2 % 7 >= 0 and -N < 0", [0, 1, 2]),
        ("lr < 0.2", [1]),  # an empty cell satisfies nothing
        ("not lr < 0.2", [2]),
        ("seed == 0 or lr > 0.2", [0, 2]),
        (" dataset >= 'd' ", [1]),
    ],
)
def test_expressions(expression, rows):
    assert filter_rows(ROWS, [expression]) == [ROWS[i] for i in rows]


def test_several_are_and_ed_and_none_keeps_all():
    assert filter_rows(ROWS, ["N > 1e8", "seed == 0"]) == [ROWS[2]]
    assert filter_rows(ROWS, []) == ROWS


NUMBERS = st.sampled_from(["N", "D", "2", "0.5", "1e3"])
TERMS = st.recursive(
    st.tuples(NUMBERS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), NUMBERS).map(" ".join),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({' '.join(t)})"),
        inner.map(lambda text: f"not ({text})"),
    ),
    max_leaves=6,
)


@settings(max_examples=150)
@given(expression=TERMS, N=st.floats(0.1, 1e4), D=st.floats(0.1, 1e4))
def test_they_mean_what_python_means(expression, N, D):
    rows = filter_rows([{"N": N, "D": D}], [expression])
    assert bool(rows) == eval(expression, {"__builtins__": {}}, {"N": N, "D": D})


@settings(max_examples=200)
@given(expression=st.text(alphabet="ND123.()<>=!+-*/%'\" andornt_[]{}:,@", max_size=40))
def test_any_text_is_a_subset_or_one_line_of_refusal(expression):
    try:
        assert filter_rows([{"N": 1.0, "D": 2.0}], [expression]) in ([], [{"N": 1.0, "D": 2.0}])
    except BadInput as refusal:
        assert "\n" not in str(refusal)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("N >", "--where='N >'"),
        ("", "invalid syntax"),
        ("M > 1", "no column 'M'"),
        ("datset == 'c4'", "did you mean 'dataset'"),
        ("N", "compare with something"),
        ("N and D", "not true or false"),
        ("dataset > 3", "'c4' and 3.0 can't be compared"),
        ("dataset * 3 > 1", "'c4' is text"),
        ("N / (seed - seed) > 1", "row 1: float division by zero"),
        ("9**9**9**9 > N", "row 1"),
        ("open('x')", "no column 'open'"),
        ("N.real > 1", "no column 'N.real'"),
        ("(N + D).real > 1", "is not arithmetic, a comparison"),
        ("[x for x in N]", "no column 'x'"),
        ("N[0] > 1", "is not arithmetic"),
        ("(lambda: 1)() > 0", "is not arithmetic"),
        ("f'{N}' == '1'", "is not arithmetic"),
        ("N if D else N", "is not arithmetic"),
        ("N in (1, 2)", "is not arithmetic"),
        ("N > 1 " + "and N > 1 " * 200, "longer than 1000 characters"),
    ],
)
def test_what_is_not_understood_is_refused(expression, message):
    with pytest.raises(BadInput, match=None) as refusal:
        filter_rows(ROWS, [expression])
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_column_may_have_a_full_key():
    rows = [{"train.seed": seed, "optim.peak_lr": 1e-3, "a.b.c": seed} for seed in range(3)]
    assert filter_rows(rows, ["train.seed > 0 and optim.peak_lr < 1", "a.b.c != 2"]) == [rows[1]]
