"""Lay tables out for a terminal's width: text wraps, numbers stay whole, and columns that don't fit move below.

A table that is too wide is printed in parts, one below the other. Each part repeats the first column, so no column is
lost, and a last line says so. A pipe or file gets the table whole, at any width, for cut, sort and diff.
"""

import re
import shutil
import sys
from collections.abc import Iterator, Sequence

from scalelab.untrusted.text import escape_text

LEAST_TEXT = 18  # columns to which a column of text shrinks before columns move below
BREAK = re.compile(r"(?<=[/_,:;=|-])(?=[^\W\d])|\s+")  # before a letter: no break falls inside a number

Rows = Sequence[Sequence[str]]


def align_columns(rows: Rows, to: str = "left") -> list[str]:
    """Format rows of cells as lines with aligned columns; `to`: left or right. On a terminal they fit its width."""
    if not sys.stdout.isatty():
        return _align(rows, [max(map(len, column)) for column in zip(*rows, strict=True)], to)
    return fit_lines(rows, shutil.get_terminal_size().columns, to)


def print_table(columns: Sequence[str], cells: Rows) -> None:
    """Print a table with borders on a terminal, as wide as that is; elsewhere aligned plain text."""
    columns, cells = [*map(escape_text, columns)], [[*map(escape_text, line)] for line in cells]
    if not sys.stdout.isatty():
        print("\n".join(align_columns([columns, *cells])))
        return
    from rich.console import Console  # not at the top: pipes don't need it
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout)
    parts = split_columns([columns, *cells], console.width, gap=3, edge=4)
    for places, widths in parts:
        table = Table()
        for place, width in zip(places, widths, strict=True):
            table.add_column(Text("\n".join(wrap_cell(columns[place], width))), width=width, overflow="fold")
        for line in cells:  # as Text, a name in brackets is not markup
            table.add_row(*(Text("\n".join(wrap_cell(line[i], w))) for i, w in zip(places, widths, strict=True)))
        console.print(table)
    if len(parts) > 1:
        print(describe_parts(len(parts), console.width))


def fit_lines(rows: Rows, width: int, to: str = "left") -> list[str]:
    """Like `align_columns`, for a terminal of `width` columns."""
    lines: list[str] = []
    parts = split_columns(rows, width, gap=2, edge=0)
    for places, widths in parts:
        lines += [""] if lines else []
        for row in rows:
            wrapped = [wrap_cell(row[i], w) for i, w in zip(places, widths, strict=True)]
            height = max(map(len, wrapped))
            filled = [[*cell, *[""] * (height - len(cell))] for cell in wrapped]
            lines += _align(list(zip(*filled, strict=True)), widths, to)
    return lines + ([describe_parts(len(parts), width)] if len(parts) > 1 else [])


def describe_parts(count: int, width: int) -> str:
    """Say that a table is printed in `count` parts."""
    return f"(one table in {count} parts, as {width} columns are too few; `| cat` prints it whole)"


def split_columns(rows: Rows, width: int, gap: int, edge: int) -> list[tuple[list[int], list[int]]]:
    """Split a table into parts that fit `width`: for each part the places of its columns, and their widths.

    `gap` and `edge`: columns between two cells, and around a row. Each part begins with the table's first column.
    """
    columns = list(zip(*rows, strict=True))
    whole = [max(map(len, column)) for column in columns]
    least = [max(len(piece) for cell in column for piece in _pieces(cell)) for column in columns]
    least = [max(low, min(wide, LEAST_TEXT)) for low, wide in zip(least, whole, strict=True)]

    def room(places: Sequence[int]) -> int:
        return width - edge - gap * (len(places) - 1)

    parts: list[list[int]] = [[0]]
    for place in range(1, len(columns)):
        together = [*parts[-1], place]
        fits = sum(least[i] for i in together) <= room(together) or len(parts[-1]) == 1
        parts = [*parts[:-1], together] if fits else [*parts, [0, place]]
    return [(part, _shrink([whole[i] for i in part], [least[i] for i in part], room(part))) for part in parts]


def _shrink(whole: list[int], least: list[int], room: int) -> list[int]:
    """Take columns from the widest cells until `room` is enough, or all have their least width."""
    widths = list(whole)
    while sum(widths) > room and widths != least:
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def wrap_cell(text: str, width: int) -> list[str]:
    """Wrap a cell at blanks and behind punctuation, never inside a number; a longer word stays whole."""
    if len(text) <= width:
        return [text]
    lines = [""]
    for piece, blanks in _split(text):
        if lines[-1] and len(lines[-1] + piece) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
        lines[-1] += piece + blanks
    return [*lines[:-1], lines[-1].rstrip()]


def _split(text: str) -> Iterator[tuple[str, str]]:
    """Give pieces that stay whole, each with the blanks behind it."""
    start = 0
    for mark in [*BREAK.finditer(text), None]:
        end, after = (mark.start(), mark.end()) if mark else (len(text), len(text))
        yield text[start:end], text[end:after]
        start = after


def _pieces(text: str) -> list[str]:
    return [piece for piece, _ in _split(text)]


def _align(rows: Rows, widths: Sequence[int], to: str) -> list[str]:
    fill = str.ljust if to == "left" else str.rjust
    return ["  ".join(map(fill, row, widths)).rstrip() for row in rows]
