"""Files of runs: three formats that say the same, and whatever else may be given by mistake."""

import csv
import gzip
import json
import os

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from scalelab.errors import BadInput
from scalelab.laws.read import readers
from scalelab.laws.read.readers import read_raw_rows

QUIET = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
POSITIVE = st.floats(1e-300, 1e300)
LINES = st.lists(st.fixed_dictionaries({"N": POSITIVE, "D": POSITIVE, "loss": POSITIVE}), min_size=1, max_size=8)


def written(tmp_path, content, name):
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
    return path


@QUIET
@given(lines=LINES)
def test_every_format_gives_back_the_same_bits(tmp_path, lines):
    parquet.write_table(pyarrow.Table.from_pylist(lines), tmp_path / "t.parquet")
    written(tmp_path, "".join(json.dumps(line) + "\n" for line in lines), "t.jsonl")
    with (tmp_path / "t.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    assert read_raw_rows(tmp_path / "t.parquet") == lines == read_raw_rows(tmp_path / "t.jsonl")
    assert [{k: float(v) for k, v in line.items()} for line in read_raw_rows(tmp_path / "t.csv")] == lines


def assert_rows_or_refusal(path):
    try:
        lines = read_raw_rows(path)
    except BadInput as refusal:
        assert "\n" not in str(refusal)
    else:
        assert lines and all(isinstance(line, dict) for line in lines)


@QUIET
@given(content=st.binary(min_size=1, max_size=200), suffix=st.sampled_from([".csv", ".jsonl", ".parquet"]))
def test_any_bytes_are_rows_or_one_line_of_refusal(tmp_path, content, suffix):
    assert_rows_or_refusal(written(tmp_path, content, f"t{suffix}"))


@QUIET
@given(text=st.text(min_size=1, max_size=200), suffix=st.sampled_from([".csv", ".jsonl"]))
def test_any_text_is_rows_or_one_line_of_refusal(tmp_path, text, suffix):
    assert_rows_or_refusal(written(tmp_path, text.encode("utf-8", "replace"), f"t{suffix}"))


def test_a_byte_order_mark_and_empty_lines_are_no_cells(tmp_path):
    assert read_raw_rows(written(tmp_path, b"\xef\xbb\xbfN,D\r\n1,2\r\n\r\n3,4\r\n", "t.csv")) == [
        {"N": "1", "D": "2"},
        {"N": "3", "D": "4"},
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "is empty"),
        ("t.csv", "N,D\n", "holds no rows"),
        ("t.jsonl", "\n\n", "holds no rows"),
        ("t.csv", b"\x7fELF\x02\x00\x00", "binary file"),
        ("t.csv", b"N,D\n\xff\xfe1,2\n", "not text"),
        ("t.csv", "N,N\n1,2\n", "two columns 'N'"),
        ("t.csv", "N,D\n1,2\n1,2,3\n", "row 2 has 3 cells, the header 2"),
        ("t.csv", "N,D\n" + "9" * 200_000 + ",1\n", "not CSV: field larger than field limit"),
        ("t.jsonl", '{"N": 1}\n{"N"\n', "line 2 is not JSON"),
        ("t.jsonl", "[1, 2]\n", "line 1 is not an object"),
        ("t.jsonl", "[" * 100_000 + "\n", "line 1 is not JSON"),
        ("t.jsonl", '{"N": ' + "9" * 5000 + "}\n", "line 1 is not JSON: a number too long"),
        ("t.parquet", "N,D\n1,2\n", "not a parquet file"),
        ("t.tsv", "N\tN\n1\t2\n", "two columns 'N'"),
        ("t.csv.gz", "N,D\n1,2\n", "can't be read: Not a gzipped file"),
        ("t.csv.gz", gzip.compress(b"N,D\n1,2\n" * 99, mtime=0)[:-9], "can't be read: Compressed file ended"),
        ("t.csv", gzip.compress(b"N,D\n1,2\n" * 99, mtime=0), "binary file|not text"),
        ("t.csv.gz", gzip.compress(b"\0" * 99, mtime=0), "binary file: it doesn't look like a .csv table"),
        ("t.parquet.gz", b"x", "a table is a .csv, .tsv or .jsonl file"),
        ("t.gz", b"x", "a table is a .csv, .tsv or .jsonl file"),
        ("t.txt", "N,D\n1,2\n", "a table is a .csv, .tsv or .jsonl file"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, name, content, message):
    with pytest.raises(BadInput, match=message) as refusal:
        read_raw_rows(written(tmp_path, content, name))
    assert "\n" not in str(refusal.value)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 2 * 2**30)  # sparse: two gigabytes that cost no disk
    monkeypatch.setattr(readers, "_open_text", None)  # reading would fail
    with pytest.raises(BadInput, match=r"has 2\.00 GiB; a table of runs has at most 0\.5"):
        read_raw_rows(path)


def test_a_parquet_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"N": [1.0] * 20_000}), path)
    monkeypatch.setattr(readers, "LARGEST_BYTES", 100_000)
    assert path.stat().st_size < 10_000
    with pytest.raises(BadInput, match="holds 20,000 rows of 1 columns"):
        read_raw_rows(path)


def test_commas_that_split_numbers_are_named(tmp_path):
    bare = written(tmp_path, "N,D,loss\n1,234,567,20000000,3.1\n", "bare.csv")
    with pytest.raises(BadInput, match=r'has 5 cells, the header 3; commas inside numbers\? Quote these, as in "1,234'):
        read_raw_rows(bare)
    quoted = written(tmp_path, 'N,D,loss\n"1,234,567",20000000,3.1\n', "quoted.csv")
    assert read_raw_rows(quoted)[0]["N"] == "1,234,567"
    with pytest.raises(BadInput, match=r"has 4 cells, the header 3$"):
        read_raw_rows(written(tmp_path, "N,D,loss\n100,20,3.1,a\n", "other.csv"))


def test_what_spreadsheets_and_joins_leave_is_read_or_named(tmp_path):
    plain = [{"N": "1", "D": "2"}, {"N": "3", "D": "4"}]
    for content in (
        "sep=;\r\nN;D\r\n1;2\r\n3;4\r\n",
        '"sep=|"\nN|D\n1|2\n3|4\n',
        "N|D\n1|2\n3|4\n",
        "N,D,N\n1,2,1\n3,4,3\n",
    ):
        assert read_raw_rows(written(tmp_path, content, "t.csv")) == plain
    with pytest.raises(BadInput, match="two columns 'N' with other values: which one counts"):
        read_raw_rows(written(tmp_path, "N,D,N\n1,2,1\n3,4,9\n", "t.csv"))
    with pytest.raises(BadInput, match=r"its first line, 'Runs of May', looks like a title: delete it.*\(N, D\)"):
        read_raw_rows(written(tmp_path, "Runs of May,\nN,D\n1,2\n", "t.csv"))


def test_blanks_around_names_are_stripped_in_every_format(tmp_path):
    rows = [{" N ": 1.0, "loss\t": 2.0}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    written(tmp_path, json.dumps(rows[0]), "t.jsonl")
    written(tmp_path, " N ,loss\t\n1.0,2.0\n", "t.csv")
    for name in ("t.parquet", "t.jsonl"):
        assert read_raw_rows(tmp_path / name) == [{"N": 1.0, "loss": 2.0}]
    assert list(read_raw_rows(tmp_path / "t.csv")[0]) == ["N", "loss"]
    with pytest.raises(BadInput, match="two columns 'N' but"):
        read_raw_rows(written(tmp_path, json.dumps({"N": 1, "N ": 2}), "double.jsonl"))
