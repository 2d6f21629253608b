"""What the house looks like from the street, as numbers: `python -m tests.house [--json]` in any checkout.

Files and entries a folder, one-word public functions, circles of files, imports that go upward, lines over 120 columns, lengths
of functions, words of the README, and how often `config` crosses from room to room on its way through `scalelab train`.
"""

import ast
import pathlib
from collections.abc import Iterable, Iterator, Mapping

ROOT = pathlib.Path(__file__).parents[1]
ROOMS_ASIDE = ("commands", "optim", "recipes")  # one file a member: their length is that of a list


def entries(folder: pathlib.Path) -> list[str]:
    """Files and rooms in a folder, `__init__.py` aside; of `scalelab` itself only the files, for its rooms are the tree."""
    inside = [p for p in folder.iterdir() if p.name not in ("__init__.py", "__pycache__")]
    return sorted(p.name for p in inside if folder.name != "scalelab" or p.is_file())


def module_of(path: pathlib.Path) -> str:
    """scalelab/plan/step/time.py -> scalelab.plan.step.time; a package by its folder."""
    return path.relative_to(path_root(path)).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


def path_root(path: pathlib.Path) -> pathlib.Path:
    """The folder above `scalelab`."""
    return next(parent.parent for parent in path.parents if parent.name == "scalelab")


def file_graph(paths: Iterable[pathlib.Path]) -> dict[str, set[str]]:
    """module -> the modules of `paths` that it imports anywhere, a function's own imports included."""
    modules = {module_of(path): path for path in paths}
    return {name: set(_imported(path, modules)) - {name} for name, path in modules.items()}


def _imported(path: pathlib.Path, modules: Mapping[str, pathlib.Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from [name for name in (full, node.module) if name in modules][:1]


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other, each sorted; [] where the graph has no circle."""
    reach = {node: _reachable(graph, node) for node in graph}
    groups = {
        tuple(sorted(other for other in reach[node] if node in reach[other])) for node in graph if node in reach[node]
    }
    return [list(group) for group in sorted(groups)]


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += graph[node]
    return seen
