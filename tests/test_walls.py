"""The walls of the house, read off the source: which room may import which, who prints, and that tests can fail."""

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# Lowest first. A room may import its own floor and those below.
FLOORS = [
    {"errors", "set_by", "git", "user_code"},
    {"defaults"},
    {"jsonfiles", "identity"},
    {
        "config",
        "tree",
        "validate",
        "lengths",
        "ramp",
        "shares",
        "hardware",
        "device_memory",
        "records",
        "lock",
        "signals",
    },
    {"model", "data", "precision", "laws"},
    {"optim", "parallel", "hf"},
    {"train"},
    {"sweep", "evaluate"},
    {"plan", "doctor", "testing"},
    {"report"},
    {"commands", "__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
SOURCES = sorted((ROOT / "scalelab").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def relative(path):
    return path.relative_to(ROOT).as_posix()


def room(path):
    """scalelab/model/count.py -> model; scalelab/records.py -> records; scalelab/__init__.py -> None."""
    name = path.relative_to(ROOT / "scalelab").parts[0].removesuffix(".py")
    return None if name == "__init__" else name


def imports(path):
    """Every module that a file imports, anywhere in it; `from a import b` counts as a and a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                f"{relative(path)}:{node.lineno} imports relatively: the walls are read off full names"
            )
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages(path):
    return {name.split(".")[0] for name in imports(path)}


def rooms(path):
    return {
        parts[1] for parts in (name.split(".") for name in imports(path)) if parts[0] == "scalelab" and len(parts) > 1
    }


def calls(node):
    """Names of the functions called in a piece of code: `f(…)` and `a.f(…)` give f."""
    functions = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
    return {f.id if isinstance(f, ast.Name) else f.attr for f in functions if isinstance(f, ast.Name | ast.Attribute)}


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_lower_rooms_never_import_upper_ones(path):
    if room(path) is None:
        assert not rooms(path)
        return
    assert room(path) in LEVEL, f"{room(path)} is new: give it a floor in {relative(pathlib.Path(__file__))}"
    above = {other for other in rooms(path) if LEVEL[other] > LEVEL[room(path)]}
    assert not above, f"{relative(path)} imports from above: {above}"


@pytest.mark.parametrize("path", [p for p in SOURCES if room(p) == "laws"], ids=relative)
def test_laws_know_nothing_of_the_trainer(path):
    assert rooms(path) <= {"laws", "errors", "user_code"}
    assert packages(path) <= {"numpy", "scipy", "jax", "pyarrow", "scalelab"} | sys.stdlib_module_names


@pytest.mark.parametrize(
    ("package", "homes"),
    [
        ("flax", {"model"}),
        ("matplotlib", {"report"}),
        ("pyarrow", {"laws", "data"}),
        ("argparse", {"commands"}),
        ("rich", {"commands"}),
        ("safetensors", {"hf"}),
        ("tokenizers", {"data"}),
        ("tiktoken", {"data"}),
        ("tensorflow_datasets", {"data"}),
    ],
)
def test_a_package_is_imported_in_its_rooms_only(package, homes):
    users = [path for path in SOURCES if package in packages(path)]
    assert users, f"nothing imports {package}: drop it from this list"
    assert {room(path) for path in users} == homes


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_only_commands_speak_to_the_terminal(path):
    assert not packages(path) & {"absl", "torch", "tensorflow", "pandas"}
    if room(path) not in ("commands", "__main__"):
        assert "print" not in calls(ast.parse(path.read_text()))
        assert "sys.argv" not in path.read_text()


def can_fail(function, helpers):
    """Whether a test, or a helper of its module that it calls, asserts, expects an exception or calls an assert_… function."""
    if any(isinstance(node, ast.Assert) for node in ast.walk(function)):
        return True
    called = calls(function)
    if any(name in ("raises", "warns", "fail") or name.startswith("assert_") for name in called):
        return True
    rest = {name: body for name, body in helpers.items() if name not in called}
    return any(can_fail(helpers[name], rest) for name in called if name in helpers)


@pytest.mark.parametrize("path", TESTS, ids=relative)
def test_every_test_can_fail(path):
    functions = {f.name: f for f in ast.walk(ast.parse(path.read_text())) if isinstance(f, ast.FunctionDef)}
    helpers = {name: f for name, f in functions.items() if not name.startswith("test_")}
    tests = [f for name, f in functions.items() if name.startswith("test_")]
    assert tests, f"{relative(path)} holds no test"
    assert not [test.name for test in tests if not can_fail(test, helpers)]


def test_can_fail_sees_through_helpers_and_refuses_the_toothless():
    code = "def check(x):\n assert x\ndef test_a():\n check(1)\ndef test_b():\n print(1)\n"
    functions = {f.name: f for f in ast.parse(code).body}
    assert can_fail(functions["test_a"], functions)
    assert not can_fail(functions["test_b"], functions)


READ_FROM_A_FILE = {"read_json", "config_of", "planned"}


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_config_that_a_file_gave_is_resolved_as_such(path):
    """Else the code that it names would count as the user's own (`scalelab/user_code.py`)."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "resolve":
            stored = {keyword.arg for keyword in node.keywords} == {"stored"}
            assert stored or not calls(node) & READ_FROM_A_FILE, f"{relative(path)}:{node.lineno}: say stored=True"
