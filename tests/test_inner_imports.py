"""An import inside a function has a reason: the start of a command, or a package that need not be installed."""

import ast
import pathlib

from tests import inner_imports
from tests.folders import walk_statements


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
