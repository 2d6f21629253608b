"""The house seen from the street, in numbers: `python -m tests.house [ROOT] [--before=ROOT] [--json] [--out=PATH]`.

Lines by room as the formatter alone would write them, files and entries a folder, one-word public functions, circles of
files, imports that go upward or stand inside functions, lines over 120 columns, lengths of functions, words of the
README, and how often `config` crosses from room to room and from file to file on its way through `scalelab train`. Any
checkout can be measured, older ones too. The committed table is written by

    python -m tests.house --before=OLD_CHECKOUT --out=checks/results/house
"""

import argparse
import ast
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests import config_walk, inner_imports
from tests.folders import parse, walk_statements

ROOT = pathlib.Path(__file__).parents[1]
ROOMS_ASIDE = ("commands", "optim", "recipes")  # one file a member: their length is that of a list
CODE = ("scalelab", "configs", "experiments", "checks")
COLUMNS = 120
FORMAT = ("ruff", "format", "--isolated", "--no-cache", "--quiet", f"--line-length={COLUMNS}", "--target-version=py311")
MARK = re.compile(r" *# fmt: (skip|off|on)\b")  # keeps the formatter from a statement
PAGE = """# The house in numbers

Written by `python -m tests.house --before=OLD_CHECKOUT --out=checks/results/house`: `scalelab`, `configs`,
`experiments` and `checks`, with `tests` where the row says so. Rooms that are lists by design (`commands`, `optim`) are
left out of the two rows of entries. Formatted lines are those of `ruff format` once every `fmt: skip` is removed.
"""


def entries(folder: pathlib.Path) -> list[str]:
    """Files and rooms in a folder, `__init__.py` aside; of `scalelab` itself only files, as its rooms are the tree.

    A room that moved away leaves its compiled files behind, which don't count.
    """
    inside = [p for p in folder.iterdir() if p.name not in ("__init__.py", "__pycache__")]
    inside = [p for p in inside if p.is_file() or {each.name for each in p.iterdir()} - {"__pycache__"}]
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
    for node in walk_statements(parse(path)):
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


def python_files(root: pathlib.Path, folders: Iterable[str] = CODE) -> list[pathlib.Path]:
    """The Python files below some folders of a checkout."""
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def one_word_share(paths: Iterable[pathlib.Path]) -> float:
    """Share of public module-level functions whose name is one word; `main`, a custom of Python, is left out."""
    trees = [ast.parse(path.read_text()).body for path in paths]
    names = [node.name for tree in trees for node in tree if isinstance(node, ast.FunctionDef)]
    public = [name for name in names if not name.startswith("_") and name != "main"]
    return sum("_" not in name for name in public) / len(public)


def spread(lengths: Iterable[int]) -> list[int]:
    """Median, 95th percentile and maximum."""
    ordered = sorted(lengths)
    return [ordered[round(share * (len(ordered) - 1))] for share in (0.5, 0.95, 1)]


def function_lengths(paths: Iterable[pathlib.Path]) -> list[int]:
    """Lines of every function, methods and inner ones included, from `def` to its last line."""
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    return [n.end_lineno - n.lineno + 1 for n in nodes if isinstance(n, ast.FunctionDef) and n.end_lineno]


def room_graph(graph: Mapping[str, set[str]], package: str = "scalelab") -> dict[str, set[str]]:
    """The imports between what stands in a package, rooms and files, that a graph of files holds."""
    depth, arrows = len(package.split(".")), {}
    for name in graph:
        if name.startswith(f"{package}."):
            room = name.split(".")[depth]
            inside = {target.split(".")[depth] for target in graph[name] if target.startswith(f"{package}.")}
            arrows.setdefault(room, set()).update(inside - {room})
    return arrows


def circles_at_every_depth(graph: Mapping[str, set[str]]) -> dict[str, list[list[str]]]:
    """{package: circles of the rooms and files in it}, of packages that have one."""
    packages = {name.rsplit(".", depth)[0] for name in graph for depth in range(1, name.count(".") + 1)}
    every = {package: circles(room_graph(graph, package)) for package in sorted(packages)}
    return {package: inside for package, inside in every.items() if inside}


def declared_order(root: pathlib.Path) -> dict[str, int]:
    """room -> its height by the checkout's own wall test: its place in MAY_IMPORT, or its floor in FLOORS (older)."""
    code = (
        "import json; from tests import test_walls as walls; floors = getattr(walls, 'FLOORS', None);"
        "floors = floors or [[room] for room in walls.MAY_IMPORT];"
        "print(json.dumps({room: height for height, rooms in enumerate(floors) for room in rooms}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        check=True,
    )
    return json.loads(done.stdout)


def formatted_lines(root: pathlib.Path, paths: Iterable[pathlib.Path]) -> dict[str, int]:
    """Lines of some files in all and by room, once the formatter has written every statement, skipped ones too.

    So a statement laid out by hand counts in every checkout as the formatter would write it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        copies = {path: pathlib.Path(scratch) / path.relative_to(root) for path in paths}
        for path, copy in copies.items():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(MARK.sub("", path.read_text()))
        subprocess.run([sys.executable, "-m", *FORMAT, scratch], check=True)
        lines = Counter[str]()
        for path, copy in copies.items():
            lines[_floor(path.relative_to(root))] += len(copy.read_text().splitlines())
    name = "lines, formatted with fmt: skip ignored"
    return {name: lines.total()} | {f"{name}: {room}": lines[room] for room in sorted(lines)}


def _floor(path: pathlib.Path) -> str:
    """scalelab/plan/step/time.py -> scalelab/plan; scalelab/errors.py -> scalelab; other folders as they are."""
    return "/".join(path.parts[:2]) if path.parts[0] == "scalelab" and len(path.parts) > 2 else path.parts[0]


def measure(root: pathlib.Path) -> dict[str, Any]:
    """Every figure of a checkout, by the names that the table prints."""
    code, tests, package = python_files(root), python_files(root, ["tests"]), python_files(root, ["scalelab"])
    folders = [f for f in {p.parent for p in package} if f.name not in ROOMS_ASIDE and f.name != "scalelab"]
    graph = file_graph(package) | {"scalelab": set()}  # the root names functions for the type checker only
    height, arrows = declared_order(root), room_graph(graph)
    upward = [(a, b) for a, targets in arrows.items() for b in targets if height.get(b, 0) > height.get(a, 0)]
    lines = [line for path in (*code, *tests) for line in path.read_text().splitlines()]
    nodes = [node for path in tests for node in ast.walk(ast.parse(path.read_text()))]
    called = [ast.unparse(node.func).split(".")[-1] for node in nodes if isinstance(node, ast.Call)]
    return {
        "files": len(code),
        "lines": sum(len(path.read_text().splitlines()) for path in code),
        **formatted_lines(root, code),
        "fmt: skip": sum(len(re.findall(r"# fmt: skip$", path.read_text(), re.MULTILINE)) for path in code),
        "imports inside functions": len(inner_imports.list_inner_imports(root)),
        "Python files in a folder of scalelab, at most": max(len(list(f.glob("*.py"))) - 1 for f in folders),
        "entries in a folder of scalelab, at most": max(len(entries(folder)) for folder in folders),
        "one-word public functions": round(one_word_share(code), 3),
        "circles of files": len(circles(graph)),
        "circles of rooms": sum(map(len, circles_at_every_depth(graph).values())),
        "arrows upward": len(upward),
        "lines over 120 columns": sum(len(line) > COLUMNS for line in lines),
        "lines a function: median, 95 %, most": spread(function_lengths(code)),
        "lines a file: median, 95 %, most": spread([len(path.read_text().splitlines()) for path in code]),
        "words of README.md": len((root / "README.md").read_text().split()),
        "test functions": sum(isinstance(n, ast.FunctionDef) and n.name.startswith("test_") for n in nodes),
        "assert statements of tests": sum(isinstance(node, ast.Assert) for node in nodes),
        "expected exceptions and warnings of tests": sum(name in ("raises", "warns") for name in called),
        **config_walk.measure(root),
    }


def table(columns: Mapping[str, Mapping[str, Any]]) -> str:
    """Checkouts side by side, as Markdown."""
    rows = [["what", *columns]]
    names = dict.fromkeys(name for figures in columns.values() for name in figures)
    rows += [[name, *(_cell(name, figures.get(name)) for figures in columns.values())] for name in names]
    rows.insert(1, ["---", *("---:" for _ in columns)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(name: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "n/a" if value is None else f"{value:.1%}" if isinstance(value, float) else f"{value:,}"


def main(argv: list[str] | None = None) -> int:
    """Print the figures of one checkout, or of two side by side; --out writes them as Markdown and JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__, allow_abbrev=False)
    parser.add_argument("root", nargs="?", default=ROOT, type=pathlib.Path, help="a checkout (default: this one)")
    parser.add_argument("--before", type=pathlib.Path, metavar="ROOT", help="a checkout to put beside it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=pathlib.Path, metavar="PATH", help="also write PATH.md and PATH.json")
    options = parser.parse_args(argv)
    roots = {"before": options.before} if options.before else {}
    columns = {_label(name, root): measure(root.resolve()) for name, root in (roots | {"now": options.root}).items()}
    print(json.dumps(columns) if options.json else table(columns))
    if options.out:
        options.out.with_suffix(".json").write_text(json.dumps(columns, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(f"{PAGE}\n{table(columns)}\n\n{config_walk.DEFINITION}\n")
    return 0


def _label(name: str, root: pathlib.Path) -> str:
    answer = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
    return f"{name} ({answer.stdout.strip()})" if answer.returncode == 0 else name


if __name__ == "__main__":
    sys.exit(main())
