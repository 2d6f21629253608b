"""Which definitions a study's `main` reaches, and their syntax without what moves no number.

A definition is a function, class or assignment at the top of a file. What only a figure, a page or a command line uses
is not reached (`SHOWS`). Left out of the syntax are comments, docstrings, layout, imports, annotations of types, and
the names of local variables, and where a file stands (`__file__`).
"""

import ast
import functools
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Set
from typing import NamedTuple

SHOWS = re.compile(
    r"_?(?:draw|page|panel|write|main|legend|(?:plot|describe|print)(?:_\w+)?)|\w*_(?:page|figure|panel)"
)
UNWRITTEN = {"ctx", "kind", "type_comment", "annotation", "returns"}
TOP = ""  # the name of the statements of a file that define nothing, which run when it is imported
Find = Callable[[str], pathlib.Path | None]  # the file of a module
Place = tuple[pathlib.Path, str]  # a definition: its file and its name


class Source(NamedTuple):
    """A file: {name: its nodes} of its definitions, and {name: (module, name there or "")} of what it imports."""

    definitions: dict[str, list[ast.stmt]]
    imports: dict[str, tuple[str, str]]


def find_reached(start: pathlib.Path, files: Set[pathlib.Path], find: Find) -> dict[Place, str]:
    """{definition: its syntax} of all that `start` reaches within `files`.

    The walk goes from `main`, else from all of `start`; and from all of a file beside it that no file imports, which a
    process of its own may run.
    """
    imported = {file for path in files for file in imported_files(path, find)}
    alone = {path for path in files - imported if path.parent == start.parent and path != start}
    names = {path: read_source(path).definitions for path in files}
    todo = [(start, name) for name in (["main", TOP] if "main" in names[start] else names[start])]
    todo += [(path, name) for path in sorted(alone) for name in names[path]]
    walked: set[Place] = set()
    reached = {}
    while todo:
        place = path, name = todo.pop()
        if place in walked or path not in files:
            continue
        walked.add(place)
        nodes = names[path].get(name, [])
        is_main = name in ("main", "_main")
        if nodes and (not SHOWS.fullmatch(name) or (is_main and path != start)):
            reached[place] = "\n".join(write_definition(node) for node in nodes)
        if is_main or not SHOWS.fullmatch(name):
            todo += [(path, TOP), *(each for node in nodes for each in _references(node, path, find))]
        if not nodes and name in read_source(path).imports:  # a name that the file hands on
            todo += _targets(path, [name], find)
    return reached


@functools.cache
def read_source(path: pathlib.Path) -> Source:
    """The definitions and imports of a file."""
    definitions: dict[str, list[ast.stmt]] = {TOP: []}
    for node in parse_file(path).body:
        if not _left_out(node):
            for name in _defined_names(node):
                definitions.setdefault(name, []).append(node)
    imports = {}
    for each in ast.walk(parse_file(path)):
        if isinstance(each, ast.Import):
            imports |= {alias.asname or alias.name: (alias.name, "") for alias in each.names}
        elif isinstance(each, ast.ImportFrom) and each.module:
            imports |= {alias.asname or alias.name: (each.module, alias.name) for alias in each.names}
    return Source(definitions, imports)


def _defined_names(node: ast.stmt) -> list[str]:
    """The names that a statement defines; TOP where it defines none and runs when the file is imported."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    runs_as_script = isinstance(node, ast.If) and "__main__" in ast.dump(node.test)
    return names or ([] if runs_as_script else [TOP])


def imported_files(path: pathlib.Path, find: Find) -> Iterator[pathlib.Path]:
    """Files that a file imports, with those that it names as parts of a package."""
    for module, name in read_source(path).imports.values():
        yield from filter(None, (find(module), find(f"{module}.{name}") if name else None))


def _references(node: ast.AST, path: pathlib.Path, find: Find) -> list[Place]:
    """The definitions that a node may use: by name, and as `module.name`."""
    within = {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    named = (each for each in ast.walk(node) if isinstance(each, ast.Attribute | ast.Name) and id(each) not in within)
    return _targets(path, sorted({ast.unparse(each) for each in named}), find)


def _targets(path: pathlib.Path, dotted: list[str], find: Find) -> list[Place]:
    """The definitions that names of a file mean; all of a module that is named as a whole."""
    source = read_source(path)
    places = [(path, name) for name in (each.partition(".")[0] for each in dotted) if name in source.definitions]
    for name in dotted:
        for alias in (alias for alias in source.imports if name == alias or name.startswith(f"{alias}.")):
            module, attribute = source.imports[alias]
            as_module = find(f"{module}.{attribute}" if attribute else module)
            rest = name[len(alias) + 1 :].partition(".")[0]
            if as_module:
                places += [(as_module, each) for each in ([rest] if rest else read_source(as_module).definitions)]
            elif attribute and (file := find(module)):
                places.append((file, attribute))
    return places


def write_definition(node: ast.stmt) -> str:
    """The syntax of a definition in one line, equal under all Pythons, local variables named by their order."""
    if isinstance(node, ast.Assign) and any(
        isinstance(each, ast.Name) and each.id == "__file__" for each in ast.walk(node)
    ):
        return "a place"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        parameters = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
        stored = (each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
        shared = {name for each in ast.walk(node) if isinstance(each, ast.Global | ast.Nonlocal) for name in each.names}
        local = dict.fromkeys(each.id for each in stored if each.id not in parameters | shared)
        return _write(node, {name: f"local{n}" for n, name in enumerate(local)})
    return _write(node, {})


def _write(node: object, names: Mapping[str, str]) -> str:
    if isinstance(node, list):
        return f"[{','.join(_write(each, names) for each in node if not _left_out(each))}]"
    if isinstance(node, ast.Name):
        return f"Name({names.get(node.id, node.id)})"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, value) for name, value in ast.iter_fields(node) if name not in UNWRITTEN)
    written = (f"{name}{_write(value, names)}" for name, value in fields if value not in (None, []))
    return f"{type(node).__name__}({','.join(written)})"


def _left_out(node: object) -> bool:
    is_docstring = (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
    return is_docstring or isinstance(node, ast.Import | ast.ImportFrom)


@functools.cache
def parse_file(path: pathlib.Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())
