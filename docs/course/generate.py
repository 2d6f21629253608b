"""The notebooks of the course from their pages.

    python -m docs.course.generate

exercises.ipynb is left for its reader to run.
"""

import pathlib
import sys

from docs.notebook import make_notebook, notebook_text

FOLDER = pathlib.Path(__file__).parent


def main() -> int:
    """Write the files; exit code 0."""
    (FOLDER / "exercises.ipynb").write_text(notebook_text(make_notebook((FOLDER / "exercises.md").read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
