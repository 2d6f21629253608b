"""The notebooks of the course from their pages, and the computed answers in its index.

    python -m docs.course.generate

exercises.ipynb is left for its reader to run. The other notebooks hold their outputs, which takes two or three minutes.
"""

import pathlib
import re
import sys
from collections.abc import Callable, Iterator

from docs.course.checkers.self_check import self_check_lines
from docs.course.checkers.understanding import question_lines
from docs.notebook import make_notebook, notebook_text, run_notebook

FOLDER = pathlib.Path(__file__).parent
SHOWN = ("theory", "systems", "laws")  # notebooks with outputs
TABLES: dict[str, Callable[[], Iterator[str]]] = {"Self-check": self_check_lines, "Eight questions": question_lines}


def main() -> int:
    """Write the files; exit code 0."""
    (FOLDER / "exercises.ipynb").write_text(notebook_text(make_notebook((FOLDER / "exercises.md").read_text())))
    page = (FOLDER / "index.md").read_text()
    for title in TABLES:
        page = fill_table(page, title)
    (FOLDER / "index.md").write_text(page)
    for name in SHOWN:
        done = run_notebook(make_notebook((FOLDER / f"{name}.md").read_text()), FOLDER)
        (FOLDER / f"{name}.ipynb").write_text(notebook_text(done))
    return 0


def fill_table(page: str, title: str) -> str:
    """The index with the table below a heading of `TABLES` computed anew."""
    head, heading, rest = page.partition(f"## {title}\n")
    table = "".join(f"{line}\n" for line in TABLES[title]())
    return head + heading + re.sub(r"(^\|.*\n)+", lambda _: table, rest, count=1, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main())
