"""scalelab study                  all studies, one line each
scalelab study NAME [options]   run one; `scalelab study NAME --help` lists its options

A study trains or computes many things to answer one question, e.g. `isoflop` (the quickstart) or `mup_transfer`. This
is `python -m scalelab.experiments.NAME`, from any folder; `scalelab isoflop` is `scalelab study isoflop`.

Exit code: that of the study; 2 bad input.

    scalelab study isoflop --quick --workdir=runs/quickstart
"""

import ast
import os
import pathlib
import sys
from collections.abc import Mapping

from scalelab.cli.parser import Parser, align_columns, emit_json
from scalelab.errors import BadInput, nearest_hint


def main(argv: list[str]) -> int:
    """List the studies, or become one; exit codes in the module's docstring."""
    if argv and not argv[0].startswith("-"):
        return run_study(argv[0], argv[1:])
    options = Parser("study", __doc__).parse_args(argv)
    studies = list_studies()
    if options.json != "-":
        print("\n".join(align_columns(list(studies.items()))))
    emit_json([{"name": name, "summary": summary} for name, summary in studies.items()], options.json)
    return 0


def run_study(name: str, argv: list[str]) -> int:
    """Replace this process by the study, so that signals and exit codes are its own. BadInput if there is none."""
    studies = list_studies()
    if name not in studies:
        raise BadInput(f"no study {name!r}{nearest_hint(name, studies)}")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", f"scalelab.experiments.{name}", *argv])


def list_studies() -> Mapping[str, str]:
    """{name: first line of its docstring} of the studies, sorted; none is imported."""
    from scalelab import experiments

    folder = pathlib.Path(experiments.__file__).parent
    files = {path.stem: path for path in folder.glob("*.py") if 'if __name__ == "__main__"' in path.read_text()}
    files |= {path.parent.name: path for path in folder.glob("*/__main__.py")}
    return {name: _summary(path) for name, path in sorted(files.items())}


def _summary(path: pathlib.Path) -> str:
    lines = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()
    return next((line for line in lines if line and not line.startswith("python -m")), path.stem)
