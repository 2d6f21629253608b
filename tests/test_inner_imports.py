"""An import inside a function has a reason: the start of a command, or a package that need not be installed."""

import ast
import importlib
import pathlib
import textwrap
from collections.abc import Iterator

from tests import inner_imports
from tests.folders import walk_statements

ROOMS = ("scalelab", "checks", "tests")


def test_every_import_inside_a_function_has_a_reason():
    rows = inner_imports.list_inner_imports()
    wrong = [f"{row.path}:{row.line}: {row.modules}" for row in rows if inner_imports.reason(row) is None]
    assert not wrong, "\n".join(["these load nothing that their file doesn't: import them at its top", *wrong])


def test_what_a_file_loads_is_read_off_its_top(tmp_path):
    (tmp_path / "scalelab").mkdir()
    within = "\n\ndef f():\n    from scalelab import "
    files = {
        "light.py": f"import os{within}heavy, lightest\n    import scipy.stats\n    import wandb\n",
        "lightest.py": "import json\nif TYPE_CHECKING:\n    import jax\n",
        "heavy.py": f"from scalelab import light\nimport jax.numpy as jnp{within}light\n    import numpy\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / "scalelab" / name).write_text(text)
    rows = inner_imports.list_inner_imports(tmp_path)
    assert [row.modules for row in rows] == [
        ("scalelab.light",), ("numpy",), ("scalelab.heavy", "scalelab.lightest"), ("scipy.stats",), ("wandb",)
    ]  # fmt: skip
    assert [inner_imports.reason(row, tmp_path) for row in rows] == [
        None, None, "starts without jax, numpy", "starts without numpy, scipy, scipy.stats",
        "a package that need not be installed",
    ]  # fmt: skip


def imports_of_programs(path: pathlib.Path) -> Iterator[tuple[str, str, str]]:
    """(place, module, name) of each import from this repository in the programs that a file keeps as text."""
    for node in ast.walk(ast.parse(path.read_text())):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if "import jax" not in text:
            continue
        try:
            program = ast.parse(textwrap.dedent(text))
        except SyntaxError:
            continue
        for statement in ast.walk(program):
            if isinstance(statement, ast.ImportFrom) and (statement.module or "").split(".")[0] in ROOMS:
                for alias in statement.names:
                    yield f"{path}:{node.lineno}", str(statement.module), alias.name


def exists(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))
    except ImportError:
        return False


def test_programs_that_run_in_processes_of_their_own_import_what_is_there():
    """Most are of tests that seldom run; no linter reads them when something moves."""
    files = [path for folder in ("tests", "checks") for path in pathlib.Path(folder).rglob("*.py")]
    here = pathlib.Path(__file__).name  # whose programs are examples
    found = [row for path in files if path.name != here for row in imports_of_programs(path)]
    missing = [f"{place}: from {module} import {name}" for place, module, name in found if not exists(module, name)]
    assert len(found) > 100 and not missing, "\n".join(missing)


STATEMENTS = """
async def f(x):
    async with x as y:
        for a in y:
            import one
        else:
            import two
    try:
        match x:
            case 1:
                import three
    except ValueError:
        import four
    else:
        import five
    finally:
        while x:
            class A:
                import six
"""


def test_statements_are_those_of_pythons_own_walk():
    for text in (STATEMENTS, pathlib.Path(inner_imports.__file__).read_text()):
        tree = ast.parse(text)
        expected = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
        visited = [node for node in walk_statements(tree) if isinstance(node, ast.stmt)]
        assert len(visited) == len(expected) and {*visited} == {*expected}
