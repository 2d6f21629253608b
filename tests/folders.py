"""Tests of many files, one a folder: a test a file costs more to collect, in every worker, than to run."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def relative(path):
    return path.relative_to(ROOT).as_posix()


def by_folder(paths):
    """Run a test once a folder, with its files as `paths`."""
    groups: dict[str, list[pathlib.Path]] = {}
    for path in paths:
        groups.setdefault(relative(path.parent), []).append(path)
    return pytest.mark.parametrize("paths", groups.values(), ids=groups)
