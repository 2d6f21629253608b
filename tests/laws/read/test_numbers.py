"""Numbers as people write them: read right, or refused where a cell has two meanings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalelab.numbers.written import find_decimal_mark, is_plain, looks_numeric, parse_number


@pytest.mark.parametrize(
    ("text", "field", "mark", "value"),
    [
        ("50M", "N", ".", 50e6),
        ("1.3B", "N", ".", 1.3e9),
        ("20k", "D", ".", 20e3),
        ("3T", "D", ".", 3e12),
        ("2.4 b", "D", ".", 2.4e9),
        ("1,5B", "D", ",", 1.5e9),
        ("1,234,567", "N", ".", 1234567),
        ("1 234 567", "N", ".", 1234567),
        ("1\u202f234\u202f567,5", "N", ",", 1234567.5),
        ("1'234'567", "N", ".", 1234567),
        ("1_000", "N", ".", 1000),
        ("1.234.567,8", "N", ",", 1234567.8),
        ("1,234.5", "N", ".", 1234.5),
        ("2,51", "loss", ",", 2.51),
        (" 2.51 ", "loss", ".", 2.51),
        ("1.234", "N", ",", 1234),
        ("1e21", "C", ",", 1e21),
        ("1,5e21", "C", ",", 1.5e21),
        ("1,234,567M", "N", ".", 1234567e6),
    ],
)
def test_read_right(text, field, mark, value):
    assert parse_number(text, field, mark) == value and looks_numeric(text)


@pytest.mark.parametrize(
    ("text", "field", "mark", "reason"),
    [
        ("2.5k", "loss", ".", "k, M, B and T are read in N, D, C, U only"),
        ("12,34,567", "N", ".", "is not a number"),
        ("1,2", "N", ".", "is not a number"),
        ("1.2.3", "N", ".", "is not a number"),
        ("5MB", "N", ".", "is not a number"),
        ("1 23", "N", ".", "is not a number"),
        ("1.23,4", "N", ",", "is not a number"),
        ("M", "N", ".", "is not a number"),
        ("2,5", "N", "", "two meanings"),
        ("1e3k", "N", ".", "is not a number"),
        ("1;2", "N", ".", "is not a number"),
    ],
)
def test_anything_else_is_refused(text, field, mark, reason):
    with pytest.raises(ValueError, match=reason):
        parse_number(text, field, mark)


@pytest.mark.parametrize(
    ("cells", "mark"),
    [
        ("N 1000 loss 2.345", "."),
        ("N 50,000 loss 2.51", "."),
        ("N 50,000 loss 2,51", ","),
        ("N 50.000 loss 2,345", ","),
        ("N 50,000 loss 2.345", "."),
        ("N 1,234,567", "."),
        ("N 1.234.567", ","),
        ("N 1,234.5", "."),
        ("N 1.234,5", ","),
        ("N 0,123", ","),
        ("N 50,000", ""),
        ("N 1,5 loss 2.5", ""),
        ("N 1.234", "."),
        ("N 50,000 D 1.5B", "."),
        ("N 1,5e9", ","),
        ("N 7B loss x,y", "."),
    ],
)
def test_the_table_tells_its_decimal_mark(cells, mark):
    words = cells.split()
    assert find_decimal_mark(zip(words[::2], words[1::2], strict=True)) == mark


@pytest.mark.full
@given(value=st.floats(min_value=1e-300, max_value=1e300), whole=st.integers(1, 10**15))
def test_written_by_a_program_and_read_back_to_the_bit(value, whole):
    assert parse_number(repr(value), "loss") == value and is_plain(repr(value), value)
    assert parse_number(f"{whole:,}", "N") == parse_number(f"{whole:,}".replace(",", " "), "N") == float(whole)
    german = f"{whole:,}".replace(",", ".") + ",5"
    assert parse_number(german, "N", ",") == whole + 0.5 and find_decimal_mark([("N", german)]) == ","
