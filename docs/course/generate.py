"""The notebooks of the course from their pages, and the answers of the self-check in its index.

    python -m docs.course.generate

exercises.ipynb is left for its reader to run. theory.ipynb holds its outputs, which takes a minute or two.
"""

import pathlib
import re
import sys

from docs.course.checkers.self_check import self_check_lines

from docs.notebook import make_notebook, notebook_text, run_notebook

FOLDER = pathlib.Path(__file__).parent


def main() -> int:
    """Write the files; exit code 0."""
    (FOLDER / "exercises.ipynb").write_text(notebook_text(make_notebook((FOLDER / "exercises.md").read_text())))
    (FOLDER / "index.md").write_text(fill_self_check((FOLDER / "index.md").read_text()))
    theory = run_notebook(make_notebook((FOLDER / "theory.md").read_text()), FOLDER)
    (FOLDER / "theory.ipynb").write_text(notebook_text(theory))
    return 0


def fill_self_check(page: str) -> str:
    """The index with the table of its self-check computed anew: all lines of a table below that heading."""
    head, title, rest = page.partition("## Self-check\n")
    table = "".join(f"{line}\n" for line in self_check_lines())
    return head + title + re.sub(r"(^\|.*\n)+", lambda _: table, rest, count=1, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main())
