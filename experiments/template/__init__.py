"""The project that `scalelab init` writes: real files, tested where they stand, copied with the project's name."""

import pathlib


def files() -> list[pathlib.Path]:
    """The files of the project, this one aside."""
    folder = pathlib.Path(__file__).parent
    return [path for path in folder.iterdir() if path.name != "__init__.py" and path.suffix != ".pyc"]
