"""Imports inside functions, and why each may stand there: `python -m tests.inner_imports` lists them by reason.

An import belongs at the top of its file. Inside a function it may stand for the start of a process only: where it loads
a package that costs a command time or need not be installed, and that the file does not load at its top anyway.
"""

import ast
import functools
import pathlib
import sys
from collections import Counter
from typing import NamedTuple

from tests.folders import parse, walk_statements

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("scalelab", "checks", "experiments")
# CPU seconds to import, beyond what stands before it; a package named with a dot costs beyond its parent.
START = {
    "jax": "0.35 s", "jax.experimental.pallas": "0.3 s", "numpy": "0.07 s", "flax": "0.12 s", "optax": "0.06 s",
    "orbax": "0.2 s", "scipy": "0.2 s", "scipy.stats": "0.8 s", "matplotlib": "0.2 s", "pyarrow": "0.1 s",
    "ml_collections": "0.03 s",
    "rich": "0.06 s", "grain": "0.3 s", "torch": "2 s",
}  # fmt: skip
OPTIONAL = {
    "datasketch", "fontTools", "fsspec", "google", "httpx2", "huggingface_hub", "jinja2", "moto", "obstore", "submitit",
    "tensorboardX", "tensorflow_datasets", "tests", "tiktoken", "tokenizers", "transformers", "wandb", "zstandard",
}  # fmt: skip  # not installed with the package, or needed by one option only
LOADED_WITH = {"jax": {"numpy"}, "scipy": {"numpy"}, "flax": {"jax", "numpy", "rich"}, "optax": {"jax", "numpy"},
    "orbax": {"jax", "numpy"}, "matplotlib": {"numpy"}, "scipy.stats": {"scipy", "numpy"}}  # fmt: skip
LINKS = ("scalelab.configs", "scalelab.experiments")  # on top of the rooms: they import these
ALONE = {
    ("checks/hostile/strangers/child.py", "scalelab.__main__"): "a fake may take its place, which loads less",
    (
        "scalelab/__main__.py",
        "scalelab.git",
    ): "`scalelab --help` in .03 s: it loads half of Python's library",
}


class Inner(NamedTuple):
    """An import inside a function."""

    path: str
    line: int
    modules: tuple[str, ...]


def list_inner_imports(root: pathlib.Path = ROOT) -> list[Inner]:
    """Every import inside a function of the package, its checks and its studies."""
    files = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))]
    return [
        Inner(path.relative_to(root).as_posix(), node.lineno, tuple(_modules(node, root)))
        for path in files
        for node in _nodes_in_functions(parse(path))
    ]


def _nodes_in_functions(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    functions = [node for node in walk_statements(tree) if isinstance(node, ast.FunctionDef)]
    nodes = {id(inner): inner for function in functions for inner in walk_statements(function)}
    imports = [node for node in nodes.values() if isinstance(node, ast.Import | ast.ImportFrom)]
    return sorted(imports, key=lambda node: node.lineno)


def _modules(node: ast.Import | ast.ImportFrom, root: pathlib.Path) -> list[str]:
    """The modules that an import names: `from a import b` is a.b where that is one, else a."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    names = [f"{node.module}.{alias.name}" for alias in node.names]
    return [name if _file(name, root) else str(node.module) for name in names]


@functools.cache
def _file(module: str, root: pathlib.Path) -> pathlib.Path | None:
    place = root.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


@functools.cache
def loads(module: str, root: pathlib.Path = ROOT) -> frozenset[str]:
    """The packages of START that are loaded where a module is imported first."""
    seen, waiting, packages = set[str](), [module], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        parents = [name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)]
        file = _file(name, root)
        if file is None:
            known = {each for each in (name, *parents) if each in START}
            packages |= known.union(*(LOADED_WITH.get(each, set()) for each in known))
            continue
        waiting += parents
        waiting += _modules_at_the_top(file, root)
    return frozenset(packages)


@functools.cache
def _modules_at_the_top(file: pathlib.Path, root: pathlib.Path) -> list[str]:
    """What is imported with the file; not what only the type checker reads."""
    nodes = (node for node in parse(file).body if isinstance(node, ast.Import | ast.ImportFrom))
    return [module for node in nodes for module in _modules(node, root)]


def reason(inner: Inner, root: pathlib.Path = ROOT) -> str | None:
    """Why an import may stand in a function; None: it belongs at the top of the file."""
    (first, *_), here = inner.modules, inner.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if (inner.path, first) in ALONE:
        return ALONE[inner.path, first]
    if first.split(".")[0] in OPTIONAL:
        return "a package that need not be installed"
    if first.startswith(LINKS):
        return "configs and studies, which import the package"
    more = frozenset[str]().union(*(loads(module, root) for module in inner.modules)) - loads(here, root)
    return f"starts without {', '.join(sorted(more))}" if more else None


def main() -> int:
    """Print how many there are by reason, and each without one."""
    rows = list_inner_imports()
    for text, count in sorted(Counter(str(reason(row)) for row in rows).items(), key=lambda each: -each[1]):
        print(f"{count:4d}  {text}")
    for row in rows:
        if reason(row) is None:
            print(f"{row.path}:{row.line}: {', '.join(row.modules)} belongs at the top of the file")
    return any(reason(row) is None for row in rows)


if __name__ == "__main__":
    sys.exit(main())
