"""scalelab init NAME [--into=DIR]

Make a project of your own in the folder NAME: a config with a grid, an optimizer and a law as plain functions, a study
in Python, a Slurm job that is requeued until it is done, a Makefile, and a test. It needs scalelab installed, and no
checkout of it. Nothing is overwritten.

Exit code: 0 done, 2 bad input.

    scalelab init mystudy && cd mystudy && make test
"""

from scalelab import api
from scalelab.cli.parser import Parser, emit_json, folder_path


def main(argv: list[str]) -> int:
    """Copy the template; exit codes in the module's docstring."""
    parser = Parser("init", __doc__)
    parser.add_argument("name", metavar="NAME", help="the project, and its folder: letters, digits, - and _")
    parser.add_argument("--into", type=folder_path, metavar="DIR", help="the folder it is made in (default: here)")
    options = parser.parse_args(argv)
    folder, names = api.init(options.name, options.into)
    if options.json != "-":
        print(f"{folder}: {', '.join(names)}\ncd {folder} && make test")
    emit_json({"folder": str(folder), "files": names}, options.json)
    return 0
