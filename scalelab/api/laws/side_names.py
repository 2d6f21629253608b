"""Names of folders of runs, where a folder is a side of a comparison."""

import pathlib
from collections.abc import Sequence
from typing import Any


def distinct_names(paths: Sequence[Any]) -> list[str]:
    """The folders' names, each with as many of the folders above it as tell them apart."""
    parts = [pathlib.Path(path).expanduser().absolute().parts for path in paths]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return ["/".join(each) for each in parts]
