"""The slow tests' result: what passed on this file is kept, what failed, changed or did not end is run again."""

import json

import pytest

from checks.hostile import stores
from checks.platforms import slow_tests

GOOD = "import pytest\n@pytest.mark.slow\n@pytest.mark.parametrize('x', [1, 2])\ndef test_good(x): pass\n"
BAD = "import pytest, pathlib\n@pytest.mark.slow\ndef test_bad(): assert pathlib.Path('mended').exists()\n"
NAMES = {"rooms/a/test_good.py": ["test_good[1]", "test_good[2]"], "rooms/test_bad.py": ["test_bad"]}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of two small test files, one with a failing test; its runs are counted by file."""
    (tmp_path / "rooms" / "a").mkdir(parents=True)
    (tmp_path / "rooms/a/test_good.py").write_text(GOOD + "def test_quick(): raise ValueError\n")
    (tmp_path / "rooms/test_bad.py").write_text(BAD)
    for module in (slow_tests, stores):
        monkeypatch.setattr(module, "_ROOT", tmp_path)
    return tmp_path


def run(folder, capsys, tests="rooms"):
    """Exit code, the files that ran, and the rows that are kept."""
    code = slow_tests.main([f"--workdir={folder / 'out'}", f"--tests={tests}"])
    error, path = capsys.readouterr().err, folder / "out" / "slow_tests.json"
    ran = [line.partition(":")[0] for line in error.splitlines() if line.endswith(" tests")]
    return code, ran, json.loads(path.read_text()) if path.exists() else {}


def fake_tests(path, marks, environment, jobs):
    """What `stores.run_tests` says of a checkout's file, without a session of pytest."""
    bad = "assert pathlib" in (slow_tests._ROOT / path).read_text() and not (slow_tests._ROOT / "mended").exists()
    return [{"name": name, "outcome": "failed" if bad else "passed"} for name in NAMES[path]]


def test_what_failed_or_changed_is_run_again_and_what_passed_is_not(checkout, monkeypatch, capsys):
    monkeypatch.setattr(slow_tests, "collect_tests", lambda paths: NAMES)
    monkeypatch.setattr(slow_tests, "run_tests", fake_tests)
    code, ran, first = run(checkout, capsys)
    assert code == 1 and ran == [*NAMES] and first["missing"] == []
    assert [row["failures"] for row in first["files"]] == [[], ["rooms/test_bad.py::test_bad"]]
    assert "- `rooms/test_bad.py::test_bad`" in (checkout / "out" / "slow_tests.md").read_text()
    assert all(row["commit"] == first["made_by"]["commit"] for row in first["files"])
    code, ran, again = run(checkout, capsys)
    assert code == 1 and ran == ["rooms/test_bad.py"] and again["files"][0] == first["files"][0]
    (checkout / "mended").touch()
    assert run(checkout, capsys)[:2] == (0, ["rooms/test_bad.py"])
    assert run(checkout, capsys)[:2] == (0, [])
    (checkout / "rooms/a/test_good.py").write_text(GOOD)
    assert run(checkout, capsys)[:2] == (0, ["rooms/a/test_good.py"])
    more = NAMES | {"rooms/test_bad.py": ["test_bad", "test_that_a_helper_marks"]}
    monkeypatch.setattr(slow_tests, "collect_tests", lambda paths: more)
    code, ran, last = run(checkout, capsys)
    assert (code, ran) == (1, ["rooms/test_bad.py"])  # one of two did not end
    assert last["files"][1]["failures"] == ["rooms/test_bad.py: 1 tests did not end"]


def test_an_interruption_keeps_the_files_that_ended(checkout, monkeypatch, capsys):
    monkeypatch.setattr(slow_tests, "collect_tests", lambda paths: NAMES)

    def stopped(path, *options):
        if "bad" in path:
            raise KeyboardInterrupt
        return fake_tests(path, *options)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(slow_tests, "run_tests", stopped)
        assert run(checkout, capsys)[0] != 0
    result = json.loads((checkout / "out" / "slow_tests.json").read_text())
    assert [row["file"] for row in result["files"]] == ["rooms/a/test_good.py"]
    assert result["missing"] == ["rooms/test_bad.py"]
    assert "have not run: rooms/test_bad.py." in (checkout / "out" / "slow_tests.md").read_text()
    monkeypatch.setattr(slow_tests, "run_tests", fake_tests)
    code, ran, result = run(checkout, capsys)
    assert code == 1 and ran == ["rooms/test_bad.py"] and result["missing"] == []


@pytest.mark.full
def test_pytest_itself_is_asked_which_tests_are_slow_and_what_they_did(checkout, capfd):
    """The sessions of pytest are real here: the slow tests alone are run, and a file that cannot load is a failure."""
    code, ran, result = run(checkout, capfd)
    assert code == 1 and ran == ["rooms/a/test_good.py", "rooms/test_bad.py"]
    counts = [[row[key] for key in slow_tests.COUNTS] for row in result["files"]]
    assert counts == [[2, 0, 0], [0, 1, 0]]
    (checkout / "rooms/test_bad.py").write_text("import not_there\n")
    assert slow_tests.main([f"--workdir={checkout / 'out'}", "--tests=rooms"]) == 1
    assert "could not collect" in capfd.readouterr().err


def test_a_path_that_is_not_there_is_one_line(checkout, capsys):
    assert run(checkout, capsys, tests="rooms,absent")[0] == 2
