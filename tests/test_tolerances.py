"""What `make test-machines` hears of a comparison, what it calls rounding, what it lists and what it runs again."""

import json
import os
import subprocess
import sys

import pytest

from checks.platforms import machine_runs
from checks.platforms.machines import is_rounding, main, measured_rooms, parse_runs, room_used, summarize_folders

SEEN = """
import math
import numpy as np, pytest
def test_near():
    np.testing.assert_allclose([1.0, 2.0], [1.0, 2.0 + 5e-6], rtol=0, atol=1e-5)
    assert 1.0 + 9e-7 == pytest.approx(1.0, rel=1e-6)
    assert np.float64(0.3) < 2 * 0.5
    assert 3 < 4
    assert math.isclose(1.0, 1.0 + 2e-7, rel_tol=1e-6)
    np.testing.assert_array_less([0.1, 0.7], 1.0)
def test_printed():
    assert 0.3811 == pytest.approx(0.38, abs=0.005)
    assert 0.3811 == pytest.approx(0.38, abs=0.004)
def test_slack():
    above = 2.0 + 1e-9
    assert above <= 2.0 * (1 + 1e-9)
def test_exact():
    assert [0.5] == [1 / 2]
def test_no_numbers():
    assert "a" < "b"
"""


def heard(folder, *more):
    """{test: the plugin's line} of SEEN."""
    (folder / "test_seen.py").write_text(SEEN)
    options = ["-p", "tests.tolerances", "-o", "enable_assertion_pass_hook=true", "-p", "no:cacheprovider"]
    env = os.environ | {"SCALELAB_TOLERANCES": str(folder), "PYTHONPATH": os.getcwd(), "SCALELAB_TESTS": str(folder)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *options,
        f"--rootdir={folder}",
        str(folder / "test_seen.py"),
        *more,
    ]
    subprocess.run(command, env=env, cwd=folder, check=True, capture_output=True)
    rows = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return {row["test"].partition("::")[2]: row for row in rows}


def test_each_kind_of_comparison_is_heard_with_the_part_that_it_used(tmp_path):
    (tmp_path / "skip.json").write_text(json.dumps(["test_seen.py::test_no_numbers"]))
    tests = heard(tmp_path)
    assert {name: row["floats"] for name, row in tests.items()} == {
        "test_near": True, "test_printed": True, "test_slack": True, "test_exact": True,
    }  # fmt: skip
    assert all(row["outcome"] == "passed" and row["seconds"] > 0 for row in tests.values())
    assert [(row["kind"], pytest.approx(row["used"], rel=1e-4)) for row in tests["test_near"]["comparisons"]] == [
        ("allclose", 0.5), ("approx", 0.9), ("<", 0.3), ("isclose", 0.2), ("<", 0.7),
    ]  # fmt: skip
    assert [row["printed"] for row in tests["test_printed"]["comparisons"]] == [True, False]
    (slack,) = tests["test_slack"]["comparisons"]
    assert (slack["used"], slack["allowed"], slack["size"]) == (pytest.approx(0.5, rel=1e-3), pytest.approx(2e-9), 2.0)
    assert tests["test_exact"]["comparisons"] == []


def test_rounding_is_what_is_small_or_is_moved_and_not_large():
    assert is_rounding(2e-6, [0.5, 0.5]) and is_rounding(2e-6, [0.5])
    assert is_rounding(1e-3, [0.5, 0.2]) and not is_rounding(1e-3, [0.5, 0.5, None])
    assert not is_rounding(0.05, [0.5, 0.2])


def test_rounding_uses_the_largest_share_and_a_fact_what_it_is_moved_by():
    assert room_used([0.2, 0.4, None], rounding=True) == 0.4
    assert room_used([0.9, 0.9], rounding=False) == room_used([1.0], rounding=False) == 0
    assert room_used([0.90, 0.95], rounding=False) == pytest.approx(0.5)


def comparison(test, used, allowed=1e-6, size=1.0, kind="approx", printed=False):
    row = {"line": "tests/a/test_b.py:3", "kind": kind, "used": used, "allowed": allowed, "size": size}
    return {"test": f"tests/a/test_b.py::{test}", "comparisons": [row | {"printed": printed}]}


def test_a_row_is_the_parametrized_test_that_uses_most():
    runs = [[comparison("t[1]", 0.2), comparison("t[2]", 0.4)], [comparison("t[1]", 0.5), comparison("t[2]", 0.1)]]
    (row,) = measured_rooms(runs)
    assert (row["test"], row["shares"], row["used"]) == ("tests/a/test_b.py::t", [0.2, 0.5], 0.5)
    assert summarize_folders([row], 2) == [
        {"folder": "a", "rounding": 1, "largest": [0.2, 0.5], "where": "tests/a/test_b.py:3", "facts": 0, "moved": 0.0}
    ]


def test_printed_digits_and_large_distances_are_facts():
    rows = measured_rooms([[comparison("p", 0.9, printed=True), comparison("q", 0.9, allowed=1.0, size=9.0)]])
    assert [(row["rounding"], row["used"]) for row in rows] == [(False, 0.0)] * 2


def test_runs_are_cores_with_or_without_an_instruction_set(capsys):
    assert parse_runs("Haswell:AVX2,Zen") == [("Haswell", "AVX2"), ("Zen", "")]
    assert main(["--runs=:AVX2"]) == 2
    assert "CORE or CORE:ISA" in capsys.readouterr().err


PLANTED = """
import numpy as np
def test_a_tenth_in_fp32():
    np.testing.assert_allclose(np.float32(0.1), 0.1, rtol={rtol})
def test_something_else():
    assert 0.25 + 0.25 == 0.5
"""


@pytest.mark.full
def test_a_tight_tolerance_that_is_planted_is_listed_and_ends_with_1(tmp_path, monkeypatch, capfd):
    tests = tmp_path / "test_planted.py"
    tests.write_text(PLANTED.format(rtol=2e-8))
    monkeypatch.setenv("SCALELAB_TESTS", str(tmp_path))
    command = ["--runs=Haswell", f"--tests={tests}", "--jobs=0", f"--workdir={tmp_path / 'out'}"]
    assert main(command) == 1
    assert "1 use over a third, 1 of them without an argument" in capfd.readouterr().out
    (row,) = json.loads((tmp_path / "out" / "machines.json").read_text())["close"]
    assert row["test"].endswith("::test_a_tenth_in_fp32") and row["rounding"] and row["used"] > 1 / 3
    page = (tmp_path / "out" / "machines.md").read_text()
    assert "## More than a third: 1" in page and "test_a_tenth_in_fp32" in page
    tests.write_text(PLANTED.format(rtol=2e-7))
    assert main(command) == 0
    assert "2 passed, 0 failed; 1 comparisons, 0 use over a third" in capfd.readouterr().out
    assert not (tmp_path / "out" / "machines.parts").exists()


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A checkout with two test files and a helper, and what was kept of a run of them."""
    (tmp_path / "tests").mkdir()
    for name in ("test_a.py", "test_b.py", "helper.py"):
        (tmp_path / "tests" / name).write_text("")
    monkeypatch.setattr(machine_runs, "ROOT", tmp_path)
    folder = tmp_path / "kept"
    machine_runs.forget_changed(folder, ["tests"])
    lines = [
        {"test": f"tests/{name}::t", "ended": time, "outcome": outcome, "seconds": 1.0}
        for name, time, outcome in [("test_a.py", 2, "passed"), ("test_a.py", 1, "failed"), ("test_b.py", 3, "passed")]
    ]
    (folder / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"test": "cut')
    return tmp_path, folder


def test_what_is_done_is_kept_and_a_line_cut_by_a_kill_is_not(tree):
    _, folder = tree
    machine_runs.forget_changed(folder, ["tests"])
    outcomes = {
        name: [line["outcome"] for line in lines] for name, lines in machine_runs.finished_tests(folder).items()
    }
    assert outcomes == {"tests/test_a.py::t": ["failed", "passed"], "tests/test_b.py::t": ["passed"]}


def test_a_changed_test_file_is_run_again_and_a_changed_helper_runs_all(tree):
    root, folder = tree
    (root / "tests" / "test_a.py").write_text("changed")
    machine_runs.forget_changed(folder, ["tests"])
    assert list(machine_runs.finished_tests(folder)) == ["tests/test_b.py::t"]
    (root / "tests" / "helper.py").write_text("changed")
    machine_runs.forget_changed(folder, ["tests"])
    assert machine_runs.finished_tests(folder) == {}


def test_other_tests_than_before_are_begun_anew(tree):
    _, folder = tree
    machine_runs.forget_changed(folder, ["tests/test_a.py"])
    assert machine_runs.finished_tests(folder) == {}


def test_an_argument_is_of_a_test_that_exists():
    for name in json.loads((machine_runs.ROOT / machine_runs.ARGUMENTS).read_text()):
        file, _, function = name.partition("::")
        assert f"\ndef {function}(" in (machine_runs.ROOT / file).read_text(), name
