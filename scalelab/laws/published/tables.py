"""Reads the run tables behind published laws from --data=DIR: `chinchilla/points.csv` and others."""

import csv
import io
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from scalelab.errors import BadInput
from scalelab.untrusted.documents import parse_json
from scalelab.untrusted.files import read_text

MOST_TABLE_BYTES = 2**29
Line = Mapping[str, Any]


def read_paper_table(data: pathlib.Path, name: str) -> list[Line]:
    """Read the rows of a .csv or .jsonl table below `data`; BadInput if it is absent."""
    path = data / name
    if not path.is_file():
        raise BadInput(f"no table {str(path)!r}; `scalelab reproduce --download={data}` fetches or names its source")
    text = read_text(path, MOST_TABLE_BYTES, follow=True)
    if path.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(text, newline="")))
    return [parse_json(line) for line in text.splitlines() if line.strip()]


def float_columns(lines: Iterable[Line], *columns: str) -> list[np.ndarray]:
    """Convert columns to float64 arrays; BadInput for a column that is missing or holds text."""
    lines = list(lines)
    try:
        return [np.array([float(line[column]) for line in lines]) for column in columns]
    except KeyError as missing:
        raise BadInput(f"the table has no column {missing}: is it the authors' own?") from None
    except (TypeError, ValueError) as error:
        raise BadInput(f"columns {', '.join(columns)}: {error}") from None
