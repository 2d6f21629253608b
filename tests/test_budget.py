"""What a session says of its CPU seconds, and when a new test is too dear."""

import ast
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

from tests import budget

ROOT = pathlib.Path(__file__).parents[1]
TABLE = tomllib.loads(budget.BUDGETS.read_text())
SPENT = {
    "tests/plan/step/test_a.py::test_b[1]": 4.0,
    "tests/plan/test_c.py::test_d": 1.0,
    "tests/test_e.py::test_f": 0.5,
}


def test_rooms_are_told_with_their_budgets_where_the_session_ran_them_all():
    assert budget.room_lines(SPENT, None) == ["CPU seconds by room: 6 in all; plan 5, tests 0"]
    lines = budget.room_lines(SPENT, {"plan": 9, "tests": 2})
    assert lines == ["CPU seconds by room / budget: 6/11 in all; plan 5/9, tests 0/2"]


def test_only_what_is_over_the_limit_and_not_listed_is_dear():
    assert budget.dear_tests(SPENT, set(), 3.0) == {"tests/plan/step/test_a.py::test_b[1]": 4.0}
    assert budget.dear_tests(SPENT, {"tests/plan/step/test_a.py::test_b"}, 3.0) == {}
    assert budget.dear_tests(SPENT, set(), 3.0 * budget.SLACK) == {}


@pytest.mark.parametrize(("speeds", "slower"), [([], 1.0), ([0.01], 1.0), ([0.022], 1.0), ([0.088], 4.0)])
def test_a_machine_that_is_slow_or_busy_has_a_higher_limit_and_a_fast_one_no_lower(speeds, slower):
    assert budget.slowness(speeds) == slower


def test_a_session_fails_by_a_new_dear_test_in_one_line_that_names_the_marker(tmp_path):
    """In a checkout of its own, whose limit is next to nothing."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_new.py").write_text("def test_new():\n    assert sum(range(3_000_000))\n")
    source = (ROOT / "tests" / "budget.py").read_text()
    (tmp_path / "tests" / "budget.py").write_text(source.replace("LIMIT_S = 3.0", "LIMIT_S = 0.001"))
    hooks = ", ".join(re.findall(r"def (pytest_\w+)", source))
    (tmp_path / "tests" / "conftest.py").write_text(f"from tests.budget import {hooks}\n")
    (tmp_path / "tests" / "budgets.toml").write_text("dear = []\n[rooms]\ntests = 1\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\npythonpath = .\nmarkers = full\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not full"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("tests/test_new.py::test_new took ")]
    assert done.returncode == 1 and len(lines) == 1 and lines[0].endswith("make it cheaper or mark it full")
    (tmp_path / "tests" / "budgets.toml").write_text('dear = ["tests/test_new.py::test_new"]\n[rooms]\ntests = 1\n')
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).returncode == 0


def test_the_table_names_tests_that_are_there_and_the_rooms_of_today():
    for test in TABLE["dear"]:
        path, name = test.split("::")
        names = [node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)]
        assert name in names, test
    rooms = {budget.room_of(f"{path.relative_to(ROOT)}::x") for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(TABLE["rooms"]) == rooms - {"slurm"} and sum(TABLE["rooms"].values()) <= 430
