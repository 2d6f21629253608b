"""Published tables that are not part of the project: $SCALELAB_TABLES, or `../shared/data` beside the checkout."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
TABLES = pathlib.Path(os.environ.get("SCALELAB_TABLES", ROOT.parent / "shared" / "data"))


def table_path(name: str) -> pathlib.Path:
    """A file or folder of the published tables; the test that asks skips where it is absent."""
    if not (TABLES / name).exists():
        pytest.skip(f"no published table {name}: set SCALELAB_TABLES to the folder that holds it")
    return TABLES / name
