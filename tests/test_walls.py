"""The walls of the house, read off the source: which room may import which, who prints, and that tests can fail."""

import ast
import functools
import pathlib
import re
import sys

import pytest

from tests import house
from tests.folders import by_folder, parse, parse_text, relative, walk_statements

ROOT = pathlib.Path(__file__).parents[1]
# Each room, and the rooms and ground-floor files that it may import; after the first comment a room may also import
# GROUND.
GROUND = (
    "errors", "numbers", "untrusted", "set_by", "git", "signals", "sharding", "jaxprs", "record", "study",
    "user_imports", "user_code",
)  # fmt: skip
MAY_IMPORT: dict[str, set[str]] = {
    # The ground floor: files that anyone may import, lowest first.
    **{key: set() for key in ("errors", "numbers", "set_by", "git", "signals", "sharding", "jaxprs", "user_imports")},
    "untrusted": {"errors"},
    "__main__": {"errors", "git", "untrusted"},
    "record": {"errors", "set_by", "untrusted"},
    "study": {"errors", "record", "untrusted"},
    "user_code": {"errors", "record", "user_imports"},
    # Rooms, each above those that it names.
    "index": set(),
    "hardware": set(),
    "stores": set(),
    "precision": {"hardware"},
    "config": set(),
    "laws": set(),
    "data": {"config", "stores"},
    "model": {"config", "hardware", "precision"},
    "hf": {"config", "data", "model"},
    "foreign": {"config", "hf", "laws", "stores"},
    "optim": {"config", "model"},
    "parallel": {"config", "model", "optim", "precision"},
    "train": {"config", "data", "hardware", "hf", "model", "optim", "parallel", "precision", "stores"},
    "evaluate": {"config", "data", "model", "precision", "train"},
    "sweep": {"config", "evaluate", "hardware", "index", "laws", "model", "optim", "parallel", "train"},
    "testing": {"config", "data", "laws", "model", "optim", "parallel", "train"},
    "report": {"index", "laws", "precision", "sweep"},
    "plan": {"config", "hardware", "laws", "model", "optim", "parallel", "precision", "sweep", "train"},
    "diagnose": {"config", "data", "evaluate", "laws", "model", "optim", "parallel", "precision", "train"},
    "api": {
        *("config", "data", "diagnose", "evaluate", "foreign", "hardware", "hf", "index", "laws", "model", "optim"),
        *("parallel", "plan", "report", "stores", "sweep", "train"),
    },
    "cli": {"api", "config", "foreign", "stores", "sweep"},
    "commands": {
        *("api", "cli", "config", "diagnose", "hardware", "index", "laws", "parallel", "plan", "report", "sweep"),
        "train",
    },
}
# Links to the folders on top, with the rooms that may import them, inside functions.
LINKS = {"configs": {"config", "index", "plan", "record", "sweep"}, "experiments": {"api"}}
MOST_ENTRIES = 12  # files and folders of a room, `__init__.py` aside; of the ground floor, files
LISTS = ("commands", "optim")  # rooms of one file a member
MOST_LINES = 300  # of a file
TABLE = ast.Dict, ast.List, ast.Set, ast.Tuple
MOST_PARAMETERS = 6  # of a function in these rooms: more are a record
RECORDS = ("scalelab/parallel", "scalelab/train/step")
SOURCES = sorted((ROOT / "scalelab").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def room(path):
    """scalelab/model/count.py -> model; scalelab/errors.py -> errors; scalelab/__init__.py -> None."""
    name = path.relative_to(ROOT / "scalelab").parts[0].removesuffix(".py")
    return None if name == "__init__" else name


@functools.cache
def imports(path):
    """Every module that a file imports, anywhere in it; `from a import b` counts as a and a.b."""
    names = set()
    for node in walk_statements(parse(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                f"{relative(path)}:{node.lineno} imports relatively: the walls are read off full names"
            )
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


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


@by_folder(SOURCES)
def test_a_room_imports_only_what_it_may(paths):
    for path in paths:
        nodes = [node for node in walk_statements(parse(path)) if isinstance(node, ast.Import)]
        assert "scalelab" not in {alias.name for node in nodes for alias in node.names}, "import a room, not the root"
        if room(path) is None:
            assert rooms(path) == {"api", "git"}  # for the type checker; imported on first use
            continue
        assert room(path) in MAY_IMPORT, (
            f"{room(path)} is new: say in {relative(pathlib.Path(__file__))} what it may import"
        )
        ground = set() if room(path) in (*GROUND, "__main__") else set(GROUND)
        links = {link for link, homes in LINKS.items() if room(path) in homes}
        allowed = MAY_IMPORT[room(path)] | {room(path)} | ground | links
        assert rooms(path) <= allowed, f"{relative(path)} imports {rooms(path) - allowed}"


def test_rooms_stand_above_each_other():
    """The declared graph is listed from the bottom up, so it has no circle."""
    below: set[str] = set()
    for name, others in MAY_IMPORT.items():
        assert others <= below, f"{name} may import {others - below}, which the list puts above it"
        below.add(name)


def architecture():
    """docs/architecture.md: (lines of the picture, {room or "The ground floor": its section})."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    picture = page.split("```")[1].strip().splitlines()
    sections = re.split(r"^### (.*)$", page.split("\n## Rooms\n")[1].split("\n## ")[0], flags=re.MULTILINE)
    return picture, {title.strip("`"): text.strip() for title, text in zip(sections[1::2], sections[2::2], strict=True)}


def test_the_page_of_the_architecture_has_every_room_with_what_it_may_import():
    picture, sections = architecture()
    folders = [name for name in MAY_IMPORT if name not in GROUND and (ROOT / "scalelab" / name).is_dir()]
    height = {
        name: -row for row, line in enumerate(picture) for name in folders if re.search(rf"^.{{0,40}}\b{name}\b", line)
    }
    assert set(sections) == {*folders, "The ground floor"} and set(height) == set(folders)
    for name in folders:
        (allowed,) = re.findall(r"May import: ([^.]*)\.", sections[name])
        assert set(re.findall(r"`(\w+)`", allowed)) == MAY_IMPORT[name], f"docs/architecture.md, {name}: {allowed}"
        assert all(height[other] < height[name] for other in MAY_IMPORT[name]), f"the picture has {name} too low"
        assert len(sections[name].splitlines()) <= 10, name
        files = re.findall(r"`([\w/]+(?:\.py|/))`", sections[name])
        assert files and [file for file in files if not (ROOT / "scalelab" / name / file).exists()] in (
            [],
            ["configs/base.py"],
        )
    (ground,) = re.findall(r"May import each other: (.*?)\.\n", sections["The ground floor"], re.DOTALL)
    entries = [entry.split(": ", 1) for entry in re.sub(r"\s+", " ", ground).split("; ")]
    words = {
        name: set(re.findall(r"`(\w+)`", others)) for names, others in entries for name in re.findall(r"`(\w+)`", names)
    }
    assert words == {name: MAY_IMPORT[name] for name in MAY_IMPORT if name not in folders}


def loaded_at_the_top(tree):
    """What a file's own statements import, those of its functions aside."""
    inner = {
        id(node) for function in ast.walk(tree) if isinstance(function, ast.FunctionDef) for node in ast.walk(function)
    }
    nodes = [node for node in walk_statements(tree) if id(node) not in inner]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    pairs = [(node.module, alias.name) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    return names | {each for module, name in pairs for each in (module, f"{module}.{name}")}


@by_folder(SOURCES)
def test_no_file_loads_scipy_stats_at_its_top(paths):
    """It takes 0.5 CPU s of each process; scipy.special has its quantiles and tails (tests/test_distributions.py)."""
    named = [path for path in paths if "scipy" in path.read_text()]
    assert not [relative(path) for path in named if "scipy.stats" in loaded_at_the_top(parse(path))]


def test_a_file_loads_what_stands_outside_its_functions():
    for text in ("from scipy import stats", "import scipy.stats as s", "from scipy.stats import t, norm"):
        assert "scipy.stats" in loaded_at_the_top(ast.parse(text))
        assert "scipy.stats" in loaded_at_the_top(ast.parse(f"try:\n    {text}\nexcept ImportError:\n    pass"))
        assert "scipy.stats" not in loaded_at_the_top(ast.parse(f"def f():\n    {text}\nfrom scipy import special"))


@functools.cache
def file_graph():
    return house.file_graph(SOURCES)


def test_no_circle_of_rooms_at_any_depth():
    """Rooms inside a room stand above each other as well: `train.resume` may import `train.run`, or the other way."""
    assert house.circles_at_every_depth(file_graph()) == {}
    below = {"scalelab.a.b.x": {"scalelab.a.c.y"}, "scalelab.a.c.y": set(), "scalelab.a.c.z": {"scalelab.a.b.x"}}
    assert house.circles_at_every_depth(below) == {"scalelab.a": [["b", "c"]]}


def test_no_circle_of_files():
    # The root names `scalelab.api` for the type checker only.
    graph = file_graph() | {"scalelab": set()}
    assert not house.circles(graph)
    assert house.circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}) == [["a", "b", "c"]]


@pytest.mark.parametrize("folder", sorted({path.parent for path in SOURCES}), ids=relative)
def test_a_room_has_few_entries_and_says_what_it_is_for(folder):
    source = (folder / "__init__.py").read_text()
    assert ast.get_docstring(ast.parse(source)), f"{relative(folder)}/__init__.py says nothing about the room"
    if folder.name not in LISTS or folder.parent.name != "scalelab":
        assert len(house.entries(folder)) <= MOST_ENTRIES, f"{relative(folder)}: {house.entries(folder)}"


def test_no_file_is_long():
    lengths = {relative(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert not {name: n for name, n in lengths.items() if n > MOST_LINES}


def kept_lines(text):
    """The lines at whose end the formatter is kept from a statement that is no table: a module's constant that is a
    literal, or a literal of three entries over several lines.
    """
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# fmt: skip")]
    whole = [node for node in walk_statements(parse_text(text)) if isinstance(node, ast.stmt)] if lines else []
    whole += [each for node in whole for each in getattr(node, "decorator_list", [])]
    for line in lines:
        around = [node for node in whole if node.lineno <= line <= node.end_lineno]
        smallest = min(around, key=lambda node: node.end_lineno - node.lineno)
        if isinstance(smallest, ast.Assign) and isinstance(smallest.value, TABLE) and smallest.col_offset == 0:
            continue
        tables = [x for x in ast.walk(smallest) if isinstance(x, TABLE) and x.end_lineno > x.lineno]
        if not any(len(x.keys if isinstance(x, ast.Dict) else x.elts) >= 3 for x in tables):
            yield line


def test_only_tables_are_kept_from_the_formatter():
    folders = ("scalelab", "checks", "experiments", "configs", "docs", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert {relative(path): lines for path in files if (lines := list(kept_lines(path.read_text())))} == {}
    packed = "def f(\n    a, b,\n):  # fmt: skip\n    return g(\n        a, b,\n    )  # fmt: skip\n"
    table = "X = [\n    1, 2,\n    3,\n]  # fmt: skip\n"
    assert list(kept_lines(packed)) == [3, 6] and not list(kept_lines(table))


@by_folder([p for p in SOURCES if relative(p).startswith(RECORDS)])
def test_what_goes_through_the_step_is_passed_in_records(paths):
    for path in paths:
        functions = {node.name: node.args for node in walk_statements(parse(path)) if isinstance(node, ast.FunctionDef)}
        names = {f: [a.arg for a in [*x.posonlyargs, *x.args, *x.kwonlyargs]] for f, x in functions.items()}
        many = {f: each for f, each in names.items() if len([a for a in each if a != "self"]) > MOST_PARAMETERS}
        assert not many, relative(path)


@by_folder([p for p in SOURCES if room(p) == "laws"])
def test_laws_know_nothing_of_the_trainer(paths):
    known = {"numpy", "scipy", "jax", "pyarrow", "scalelab"} | sys.stdlib_module_names
    for path in paths:
        assert rooms(path) <= {"laws", "errors", "numbers", "untrusted", "user_code"}, relative(path)
        assert packages(path) <= known, relative(path)


@pytest.mark.parametrize(
    ("package", "homes"),
    [
        ("flax", {"model"}),
        ("matplotlib", {"report"}),
        ("pyarrow", {"laws", "data", "foreign"}),
        ("argparse", {"cli", "commands"}),
        ("rich", {"cli", "commands"}),
        ("safetensors", {"hf"}),
        ("tokenizers", {"data"}),
        ("tiktoken", {"data"}),
        ("jinja2", {"data"}),
        ("huggingface_hub", {"data"}),
        ("obstore", {"stores"}),
        ("tensorflow_datasets", {"data"}),
    ],
)
def test_a_package_is_imported_in_its_rooms_only(package, homes):
    users = [path for path in SOURCES if package in packages(path)]
    assert users, f"nothing imports {package}: drop it from this list"
    assert {room(path) for path in users} == homes


@by_folder(SOURCES)
def test_only_commands_speak_to_the_terminal(paths):
    for path in paths:
        assert not packages(path) & {"absl", "torch", "tensorflow", "pandas"}, relative(path)
        if room(path) not in ("cli", "commands", "__main__"):
            text = path.read_text()
            assert "print" not in text or "print" not in calls(parse(path)), relative(path)
            assert "sys.argv" not in text, relative(path)


def can_fail(function, helpers):
    """Whether a test, or a helper in its module, asserts, expects an exception or calls an assert_… function."""
    if any(isinstance(node, ast.Assert) for node in walk_statements(function)):
        return True
    called = calls(function)
    if any(name in ("raises", "warns", "fail") or name.startswith("assert_") for name in called):
        return True
    rest = {name: body for name, body in helpers.items() if name not in called}
    return any(can_fail(helpers[name], rest) for name in called if name in helpers)


@by_folder(TESTS)
def test_every_test_can_fail(paths):
    for path in paths:
        functions = {f.name: f for f in walk_statements(parse(path)) if isinstance(f, ast.FunctionDef)}
        helpers = {name: f for name, f in functions.items() if not name.startswith("test_")}
        tests = [f for name, f in functions.items() if name.startswith("test_")]
        assert tests, f"{relative(path)} holds no test"
        assert not [test.name for test in tests if not can_fail(test, helpers)], relative(path)


def test_can_fail_sees_through_helpers_and_refuses_the_toothless():
    code = "def check(x):\n assert x\ndef test_a():\n check(1)\ndef test_b():\n print(1)\n"
    functions = {f.name: f for f in ast.parse(code).body}
    assert can_fail(functions["test_a"], functions)
    assert not can_fail(functions["test_b"], functions)


@by_folder(sorted((ROOT / "tests").rglob("*.py")))
def test_no_test_names_a_path_of_a_machine(paths):
    """Published tables are found by `tests/tables.py`, everything else is the test's own folder."""
    for path in paths:
        names = re.findall(r"(?<![\w.}])/(?:work|home|root|tmp|mnt|Users)\b[^\s\"']*", path.read_text())
        assert names == [], relative(path)


READ_FROM_A_FILE = {"read_json", "config_of", "planned"}


@by_folder(SOURCES)
def test_a_config_that_a_file_gave_is_resolved_as_such(paths):
    """Else the code that it names would count as the user's own (`scalelab/user_code.py`)."""
    for path in (path for path in paths if ".resolve" in path.read_text()):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "resolve":
                stored = {keyword.arg for keyword in node.keywords} == {"stored"}
                assert stored or not calls(node) & READ_FROM_A_FILE, f"{relative(path)}:{node.lineno}: say stored=True"
