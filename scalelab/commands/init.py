"""scalelab init NAME [--into=DIR]

Make a project of your own in the folder NAME: a config with a grid, an optimizer and a law as plain functions, a study
in Python, a Slurm job that is requeued until it is done, a Makefile, and a test. It needs scalelab installed, and no
checkout of it. Nothing is overwritten.

Exit code: 0 done, 2 bad input.

    scalelab init mystudy && cd mystudy && make test
"""

import pathlib
import re

from scalelab.cli.parser import Parser, emit_json, folder_path
from scalelab.errors import BadInput

PLACEHOLDER = "PROJECT"  # stands in the template for the project's name


def main(argv: list[str]) -> int:
    """Copy the template; exit codes in the module's docstring."""
    parser = Parser("init", __doc__)
    parser.add_argument("name", metavar="NAME", help="the project, and its folder: letters, digits, - and _")
    parser.add_argument("--into", type=folder_path, metavar="DIR", help="the folder it is made in (default: here)")
    options = parser.parse_args(argv)
    folder = check_new_folder(options.into or pathlib.Path(), options.name)
    names = write_project(folder, options.name)
    if options.json != "-":
        print(f"{folder}: {', '.join(names)}\ncd {folder} && make test")
    emit_json({"folder": str(folder), "files": names}, options.json)
    return 0


def check_new_folder(parent: pathlib.Path, name: str) -> pathlib.Path:
    """The folder of a new project; BadInput if the name is not plain, or if the folder holds anything."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_-0123456789") or "mystudy"
        raise BadInput(f"NAME={name!r} is not letters, digits, - and _, a letter first; nearest: {plain}")
    folder = parent / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} exists and is not an empty folder: nothing is overwritten; use another NAME")
    return folder


def write_project(folder: pathlib.Path, name: str) -> list[str]:
    """Write the template's files into `folder`, with `name` in them; return their names."""
    from scalelab.experiments import template

    sources = sorted(path for path in template.files() if path.is_file())
    folder.mkdir(parents=True, exist_ok=True)
    for source in sources:
        (folder / source.name).write_text(source.read_text().replace(PLACEHOLDER, name))
    return [source.name for source in sources]
