"""Tables on terminals of 60 to 200 columns: no number is broken, no cell is lost, no line is too long."""

import os
import pty
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalelab.cli.tables import fit_lines, split_columns, wrap_cell

NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
HEAD = ["run", "optim.peak_lr", "parameters", "tokens", "val_loss", "90 % interval", "status", "why", "wall seconds"]
ROW = ["isoflop-n8-lr0.003-seed2", "0.003", "1,334,400", "2.1e+08", "2.0917", "2.0851 to 2.0993", "finished",
    "the loss rose by 0.25 nats within 16 steps from step 1,250 on", "1,234.5"]  # fmt: skip
numbers = st.one_of(st.integers(-(10**12), 10**12).map("{:,}".format), st.floats(-1e9, 1e9).map("{:.5g}".format))
words = st.from_regex(r"[a-z]{1,12}([-_/=][a-z0-9.]{1,8}){0,3}", fullmatch=True)
cells = st.one_of(numbers, words, st.lists(st.one_of(numbers, words), max_size=6).map(" ".join))
tables = st.integers(1, 9).flatmap(lambda n: st.lists(st.lists(cells, min_size=n, max_size=n), min_size=1, max_size=5))


def columns_of(rows, width):
    """Cells of each part read back from its lines, by the places that the layout gives, with wrapped lines joined."""
    for places, widths in split_columns(rows, width, gap=2, edge=0):
        yield places, [[wrap_cell(row[i], w) for i, w in zip(places, widths, strict=True)] for row in rows]


@settings(max_examples=15, deadline=None)
@given(tables, st.integers(60, 200))
def test_numbers_stay_whole_and_every_cell_is_printed(rows, width):
    check_cells(rows, width)


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(tables, st.integers(60, 200))
def test_cells_of_more_tables_are_printed_whole(rows, width):
    check_cells(rows, width)


def check_cells(rows, width):
    seen = set()
    for places, part in columns_of(rows, width):
        seen |= set(places)
        for row, wrapped in zip(rows, part, strict=True):
            for place, lines in zip(places, wrapped, strict=True):
                assert "".join("".join(lines).split()) == "".join(row[place].split())
                whole = [number for line in lines for number in NUMBER.findall(line)]
                assert whole == NUMBER.findall(row[place])
    assert seen == set(range(len(rows[0])))
    longest = max((len(piece) for row in rows for cell in row for piece in cell.split()), default=0)
    if longest <= 25:  # two words of this length fit beside each other
        assert all(len(line) <= width for line in fit_lines(rows, width)[:-1])


@pytest.mark.parametrize("width", range(60, 201, 20))
def test_a_table_of_a_sweep(width):
    lines = fit_lines([HEAD, ROW], width)
    assert max(map(len, lines)) <= max(width, len(lines[-1]))
    text = "\n".join(lines)
    for number in ("0.003", "1,334,400", "2.1e+08", "2.0917", "2.0851", "2.0993", "1,250", "1,234.5"):
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", text), number
    assert ("| cat" in lines[-1]) == (text.count("isoflop-") > 1)  # said where, and only where, it is in parts


@pytest.mark.parametrize("width", [60, 80, 120])
def test_print_table_on_a_real_terminal(width):
    ours, theirs = pty.openpty()
    code = f"from scalelab.cli.parser import print_table; print_table({HEAD!r}, [{ROW!r}])"
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "xterm", "NO_COLOR": "1"}
    subprocess.run([sys.executable, "-c", code], stdout=theirs, check=True, env=environment)
    os.close(theirs)
    text = re.sub(r"\x1b\[[\d;]*m", "", os.read(ours, 1 << 16).decode())
    os.close(ours)
    assert "isoflop" in text and "1,334,400" in text and "2.1e+08" in text and re.search(r"[ │]2\.0917[ │]", text)
    assert all(len(line) <= width for line in text.splitlines() if "| cat" not in line)
