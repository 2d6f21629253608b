"""The fault table: its tests exist, it has every case, and a verdict is that of the tests that ran."""

import ast
import functools
import json
import pathlib

import pytest

from checks.hostile import faults

ROOT = pathlib.Path(__file__).parents[2]


@functools.cache
def names_in(file: str) -> set[str]:
    return {node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_test_of_the_table_exists():
    nodes = [test.partition("::") for case in faults.read_table() for test in case.tests]
    assert len(nodes) > 150
    assert [f"{file}::{name}" for file, _, name in nodes if name not in names_in(file)] == []


def test_every_case_has_tests_or_says_what_is_missing():
    cases = faults.read_table()
    assert [case.number for case in cases] == list(range(1, len(cases) + 1)) and len(cases) >= 80
    assert [case.number for case in cases if not case.tests and not case.missing] == []


OUTCOMES = {"a": {"passed": 2, "skipped": 1}, "b": {"failed": 1, "passed": 3}, "c": {"skipped": 2}}


@pytest.mark.parametrize(
    ("tests", "verdict"),
    [("a", "survived"), ("ab", "wrong"), ("ac", "survived"), ("c", "not tried"), ("", "not tried")],
)
def test_a_verdict_is_that_of_its_tests(tests, verdict):
    row = faults.judge_case(faults.Case(1, "x", "y", tuple(tests)), {test: OUTCOMES[test] for test in tests})
    assert row["verdict"] == verdict and row["failures"] == (["b"] if "b" in tests else [])


@pytest.mark.full
def test_finished_files_are_not_run_again(tmp_path, monkeypatch, capfd):
    """Killed after its last test, it goes on to the result; what failed, perhaps since it was killed, is run again."""
    table, file, bad = tmp_path / "faults.toml", tmp_path / "test_two.py", tmp_path / "test_bad.py"
    bad.write_text("def test_bad(): assert False\n")
    file.write_text(
        "import pytest\ndef test_good(): pass\n"
        "@pytest.mark.slow\n@pytest.mark.parametrize('x', [1, 2])\ndef test_half(x):\n    if x == 2: pytest.skip()\n"
    )
    table.write_text(
        f'[Mine]\n1 = {{ fault = "a", tests = ["{file}::test_good", "{file}::test_half"] }}\n'
        f'2 = {{ fault = "b", tests = ["{bad}::test_bad"] }}\n3 = {{ fault = "c", tests = [], missing = "d" }}\n'
    )
    monkeypatch.setattr(faults, "_ROOT", tmp_path)
    monkeypatch.setattr(faults, "read_table", functools.partial(faults.read_table, table))
    with monkeypatch.context() as killed, pytest.raises(ZeroDivisionError):
        killed.setattr(faults, "write_result", lambda *_: 1 / 0)
        faults.main([f"--workdir={tmp_path / 'out'}"])
    error = capfd.readouterr().err
    assert "2 passed, 1 skipped" in error and "1 failed" in error
    assert faults.main([f"--workdir={tmp_path / 'out'}"]) == 1
    output = capfd.readouterr()
    assert " passed" not in output.err and "1 failed" in output.err
    assert output.err.count("read from") == 1 and f"{file}: read from" in output.err
    assert output.out.endswith("3 cases: 2 tried, 1 survived, 1 wrong, 1 not tried\n")
    rows = json.loads((tmp_path / "out" / "faults.json").read_text())["cases"]
    assert [row["verdict"] for row in rows] == ["survived", "wrong", "not tried"]
    assert "1 | a | survived | 2 of 3" in (tmp_path / "out" / "faults.md").read_text()
    assert not (tmp_path / "out" / "faults.parts").exists()


def test_a_case_that_is_not_there_is_one_line(capsys):
    assert faults.main(["--cases=0,1"]) == 2
    assert "'0' is not the number of a case" in capsys.readouterr().err
