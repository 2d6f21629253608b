"""The fuzz of tables: damaged tables end with an answer or one line, and what ends otherwise is found."""

import warnings

import numpy as np
import pytest

from checks.hostile import tables


@pytest.mark.full
def test_damaged_tables_are_answered_or_refused_in_a_line(tmp_path):
    assert tables.fuzz_tables(24, 4, tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_the_damages_make_other_tables_of_both_kinds(tmp_path):
    written = set()
    for kind in tables.ENDS:
        for i in range(40):
            tables.write_damaged(kind, np.random.default_rng(i), tmp_path / "t.csv")
            written.add((tmp_path / "t.csv").read_bytes())
    assert len(written) > 75


def test_tracebacks_warnings_and_long_refusals_are_faults(monkeypatch):
    def fail(argv):
        return {"raise": lambda: 1 / 0, "warn": lambda: warnings.warn("odd", stacklevel=1) or 0, "one": lambda: 1}[
            argv[0]
        ]()

    monkeypatch.setattr(tables, "run_command", fail)
    assert tables.judge_run(["raise"]).startswith("ZeroDivisionError: division by zero at test_hostile_tables.py")
    assert tables.judge_run(["warn"]).startswith("a warning of Python: odd")
    assert tables.judge_run(["one"]) == "exit code 1: []"
