"""Rows (a dict each) as CSV text."""

import csv
import io
from collections.abc import Sequence

from scalelab.untrusted.text import escape_text


def csv_text(rows: Sequence[dict], columns: Sequence[str] | None = None) -> str:
    """A tidy table; None is an empty cell, and reading a float back gives the same bits.

    `columns`: what to write; by default every key that any row has, in order of first appearance.
    """
    columns = columns or list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return escape_text(text.getvalue(), "\r\n\t")
