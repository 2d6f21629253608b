"""What workers of a session compile for each other is what pytest and Python would have read."""

import importlib.util
import sys

from _pytest.assertion import rewrite

from tests import bytecode

TEST = "def test_it():\n    one = 1\n    assert one == 2\n"


def test_each_source_is_compiled_by_one_worker_and_taken_as_it_is(tmp_path, pytestconfig, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    tests = [tmp_path / "tests" / "room" / f"test_{name}.py" for name in "abc"]
    module = tmp_path / "scalelab" / "module.py"
    for path, text in [*((path, TEST) for path in tests), (module, "VALUE = 3\n")]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    written = []
    for place in range(2):
        bytecode.write_share(pytestconfig, place, 2, tmp_path)
        written.append({path.name.split(".")[0] for path in tmp_path.rglob("*.pyc")})
    assert written == [{"test_a", "test_c"}, {"test_a", "test_b", "test_c", "module"}]
    for path, kept in bytecode.sources(tmp_path):
        if path == module:
            assert str(kept) == importlib.util.cache_from_source(str(module))
            continue
        (function,) = (part for part in rewrite._read_pyc(path, kept).co_consts if hasattr(part, "co_varnames"))
        assert "@py_assert" in str(function.co_varnames)  # of pytest's asserts
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pyc")}
    bytecode.write_share(pytestconfig, 0, 1, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pyc")} == before
