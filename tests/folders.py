"""Tests of many files, one a folder: a test a file costs more to collect, in every worker, than to run. And the
files' syntax trees, which several tests read.
"""

import ast
import functools
import pathlib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def relative(path):
    return path.relative_to(ROOT).as_posix()


@functools.cache
def parse(path: pathlib.Path) -> ast.Module:
    """The syntax tree of a file, read once for all tests of a worker."""
    return parse_text(path.read_text())


@functools.cache
def parse_text(text: str) -> ast.Module:
    """The syntax tree of a text, as `parse` has it."""
    return ast.parse(text)


def walk_statements(tree: ast.AST) -> Iterator[ast.AST]:
    """A tree and every statement in it, at any depth: a tenth of the nodes of `ast.walk`, which has expressions too."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, part, ())


def by_folder(paths):
    """Run a test once a folder, with its files as `paths`."""
    groups: dict[str, list[pathlib.Path]] = {}
    for path in paths:
        groups.setdefault(relative(path.parent), []).append(path)
    return pytest.mark.parametrize("paths", groups.values(), ids=groups)
