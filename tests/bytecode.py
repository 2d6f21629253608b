"""Workers of a session compile a share of the sources each, before they collect: in a fresh clone they all need all.

pytest rewrites the asserts of a test file in 20 ms of CPU and keeps the result; workers that come to a file at the same
time would all do so, and compile what it imports.
"""

import importlib.util
import pathlib
import py_compile
import sys
from collections.abc import Iterator

import pytest
from _pytest.assertion import rewrite

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = ("scalelab", "configs", "experiments", "checks")


def write_share(config: pytest.Config, place: int, n: int, root: pathlib.Path = ROOT) -> None:
    """Write the bytecode of every n-th source that has none, from `place` on; one that changed keeps the old."""
    if sys.dont_write_bytecode:
        return
    for path, kept in list(sources(root))[place::n]:
        if kept.exists():
            continue
        if kept.name.endswith(rewrite.PYC_TAIL):
            _write_rewritten(path, kept, config)
        else:
            py_compile.compile(str(path), quiet=2)


def sources(root: pathlib.Path) -> Iterator[tuple[pathlib.Path, pathlib.Path]]:
    """(source, path of its bytecode) of all files of tests, then of what they import."""
    for path in sorted((root / "tests").rglob("test_*.py")):
        yield path, rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            yield path, pathlib.Path(importlib.util.cache_from_source(str(path)))


def _write_rewritten(path: pathlib.Path, kept: pathlib.Path, config: pytest.Config) -> None:
    if rewrite.try_makedirs(kept.parent):
        digest, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, digest, kept)
