"""The text of `--help` on 80 columns, from the docstring of a command: prose is filled, tables keep their columns."""

import re
import textwrap
from collections.abc import Iterator

COLUMNS = 78  # argparse leaves two of 80 columns free
GAP = re.compile(r"^(\s*\S.*?\s{2,})\S")  # first column of a row, with the blanks behind it


def split_example(doc: str) -> tuple[str, str]:
    """Split a docstring into (text, example): the example is a last paragraph of one indented command, or ""."""
    paragraphs = doc.strip("\n").split("\n\n")
    places = [i for i, paragraph in enumerate(paragraphs) if paragraph.startswith(("    scalelab ", "    python -m "))]
    example = paragraphs.pop(places[-1]) if places else ""
    return "\n\n".join(paragraphs), example


def fit_columns(text: str, width: int = COLUMNS) -> str:
    """Wrap `text` to `width`: paragraphs are filled, rows of tables and commands wrapped under their column."""
    return "\n\n".join("\n".join(_fit_paragraph(paragraph, width)) for paragraph in text.split("\n\n"))


def _fit_paragraph(paragraph: str, width: int) -> Iterator[str]:
    """Fit one paragraph: runs of prose are filled together, each other line is its own row."""
    prose: list[str] = []
    for row in _join_rows(paragraph.splitlines()):
        if not row.startswith((" ", "scalelab ")) and not GAP.match(row):
            prose.append(row)
            continue
        yield from textwrap.wrap(" ".join(prose), width)
        prose.clear()
        yield from _wrap_row(row, width)
    yield from textwrap.wrap(" ".join(prose), width)


def _join_rows(lines: list[str]) -> Iterator[str]:
    """Join each row of a table with the lines that continue it, which are indented to its second column."""
    row = ""
    for line in lines:
        start = GAP.match(row)
        if start and line.startswith(" " * len(start[1])):
            row += " " + line.strip()
            continue
        if row:
            yield row
        row = line
    yield row


def _wrap_row(row: str, width: int) -> list[str]:
    start = GAP.match(row)
    indent = len(start[1]) if start and len(start[1]) < width / 2 else len(row) - len(row.lstrip()) + 4
    return textwrap.wrap(row, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
