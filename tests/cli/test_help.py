"""The text of a help page: what is filled, what keeps its columns, where the example goes, what --help=all adds."""

import gc
import re
import sys

import pytest

from scalelab.__main__ import main
from scalelab.cli.help import fit_columns, split_example

DOC = """scalelab thing A [--with=B]

This is prose that was wrapped for an editor, not for a terminal; it is filled
again, in one
paragraph.
  --first    a row keeps its column, and what continues it
             is moved up to it
  --second   short

    scalelab thing a --with=b
"""


def test_prose_is_filled_rows_keep_their_columns_and_the_example_comes_last():
    text, example = split_example(DOC)
    assert example == "    scalelab thing a --with=b"
    assert fit_columns(text, 40).splitlines() == [
        "scalelab thing A [--with=B]",
        "",
        "This is prose that was wrapped for an",
        "editor, not for a terminal; it is filled",
        "again, in one paragraph.",
        "  --first    a row keeps its column, and",
        "             what continues it is moved",
        "             up to it",
        "  --second   short",
    ]


def test_nothing_is_lost_at_any_width():
    for width in (30, 50, 78, 120):
        assert fit_columns(DOC, width).split() == DOC.split()


def test_a_table_behind_the_example_stands_before_it():
    text, example = split_example(f"{DOC}\n  name   what it is")
    assert text.endswith("  name   what it is") and example == "    scalelab thing a --with=b"


def test_the_help_of_fit_is_short_and_says_how_to_see_the_rest(capsys):
    pages = []
    for option in ("--help", "--help=all"):
        with pytest.raises(SystemExit):
            main(["fit", option])
        pages.append(capsys.readouterr().out)
    short, whole = (set(re.findall(r"^  (--[\w-]+)", page, re.MULTILINE)) for page in pages)
    assert len(pages[0].splitlines()) < 100 and short < whole and len(whole) > 40
    assert f"--help=all` shows {len(whole - short)} more options" in pages[0]
    assert "L = E + A/N^alpha + B/D^beta" in pages[1] and pages[0].index("scalelab fit runs/") < 200


def test_a_process_of_its_own_looks_for_cycles_rarely_and_a_caller_keeps_its_collector(monkeypatch):
    """Its own 700 new objects cost a fourth of a trace of a large model."""
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        assert main(["--version"]) == 0 and gc.get_threshold()[0] == 700
        monkeypatch.setattr(sys, "argv", ["scalelab", "--version"])
        assert main() == 0 and gc.get_threshold()[0] >= 50_000
    finally:
        gc.set_threshold(*before)
