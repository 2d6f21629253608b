"""What `make test-machines` hears of a comparison, and what it lists."""

import json
import os
import subprocess
import sys

import pytest

from scalelab.experiments.machines import close_tolerances, main, parse_runs

SEEN = """
import numpy as np, pytest
def test_near():
    np.testing.assert_allclose([1.0, 2.0], [1.0, 2.0 + 5e-6], rtol=0, atol=1e-5)
    assert 1.0 + 9e-7 == pytest.approx(1.0, rel=1e-6)
    assert np.float64(0.3) < 2 * 0.5
    assert 3 < 4
"""


def test_each_kind_of_comparison_is_heard_with_the_part_that_it_used(tmp_path):
    (tmp_path / "test_seen.py").write_text(SEEN)
    options = [
        "-p",
        "tests.tolerances",
        "-o",
        "enable_assertion_pass_hook=true",
        "-p",
        "no:cacheprovider",
        f"--rootdir={tmp_path}",
    ]
    env = os.environ | {
        "SCALELAB_TOLERANCES": str(tmp_path),
        "PYTHONPATH": os.getcwd(),
        "SCALELAB_TESTS": str(tmp_path),
    }
    command = [sys.executable, "-m", "pytest", "-q", *options, str(tmp_path / "test_seen.py")]
    subprocess.run(command, env=env, cwd=tmp_path, check=True, capture_output=True)
    rows = [json.loads(line) for file in tmp_path.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert {row["kind"]: pytest.approx(row["used"], rel=1e-4) for row in rows} == {
        "allclose": 0.5,
        "approx": 0.9,
        "<": 0.3,
    }


def test_what_used_a_third_in_any_run_is_listed_and_whether_it_varies():
    row = {"test": "tests/a.py::t[1]", "line": "tests/a.py:3", "kind": "<", "used": 0.2}
    runs = [[row, row | {"test": "tests/a.py::t[2]", "used": 0.4}], [row | {"used": 0.1}]]
    (listed,) = close_tolerances(runs)
    assert (listed["test"], listed["used"], listed["varies"]) == ("tests/a.py::t", [0.4, 0.1], True)
    assert close_tolerances([[row]]) == []
    assert not close_tolerances([[row | {"used": 0.5}], [row | {"used": 0.5}]])[0]["varies"]


def test_runs_are_cores_with_or_without_an_instruction_set(capsys):
    assert parse_runs("Haswell:AVX2,Zen") == [("Haswell", "AVX2"), ("Zen", "")]
    assert main(["--runs=:AVX2"]) == 2
    assert "CORE or CORE:ISA" in capsys.readouterr().err


@pytest.mark.slow
def test_a_finished_run_is_not_run_again(tmp_path, monkeypatch, capfd):
    command = [
        "--runs=Haswell",
        "--tests=tests/test_tolerances.py::test_runs_are_cores_with_or_without_an_instruction_set",
    ]
    command += ["--jobs=0", f"--workdir={tmp_path}"]
    monkeypatch.setattr("scalelab.experiments.machines.write_result", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # killed at the end of the first run
        main(command)
    assert "1 passed" in capfd.readouterr().err
    monkeypatch.undo()
    assert main(command) == 0
    out = capfd.readouterr()
    assert "1 passed" not in out.err and "machines.parts/Haswell-own.json" in out.err
    assert json.loads((tmp_path / "machines.json").read_text())["runs"][0]["passed"] == 1
    assert not (tmp_path / "machines.parts").exists()
