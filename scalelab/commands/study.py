"""scalelab study                  all studies: cost and what was found
scalelab study NAME [options]   run one; `scalelab study NAME --help` lists its options

A study trains or computes many things to answer one question, e.g. `isoflop` (the quickstart) or `mup_transfer`. This
is `python -m scalelab.experiments.NAME`, from any folder; `scalelab isoflop` is `scalelab study isoflop`. Studies of
one phenomenon of training come first, with their CPU seconds and their finding on the machine that their result names.
What verifies scalelab itself is in `checks/` of a checkout (`python -m checks.NAME`).

Exit code: that of the study; 2 bad input.

    scalelab study isoflop --quick --workdir=runs/quickstart
"""

import ast
import os
import pathlib
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

from scalelab.cli.parser import Parser, align_columns, emit_json
from scalelab.errors import BadInput, nearest_hint
from scalelab.record import records


def main(argv: list[str]) -> int:
    """List the studies, or become one; exit codes in the module's docstring."""
    if argv and not argv[0].startswith("-"):
        return run_study(argv[0], argv[1:])
    options = Parser("study", __doc__).parse_args(argv)
    rows = describe_studies()
    if options.json != "-":
        print(_listing(rows))
    emit_json(rows, options.json)
    return 0


def run_study(name: str, argv: list[str]) -> int:
    """Replace this process by the study, so that signals and exit codes are its own. BadInput if there is none."""
    studies = list_studies()
    if name not in studies:
        raise BadInput(f"no study {name!r}{nearest_hint(name, studies)}")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", study_module(studies[name]), *argv])


def list_studies() -> Mapping[str, pathlib.Path]:
    """{name: file} of the studies, those of one phenomenon first; none is imported."""
    from scalelab import experiments

    folder = pathlib.Path(experiments.__file__).parent
    return {name: path for place in (folder / "studies", folder) for name, path in sorted(_studies_in(place))}


def _studies_in(folder: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
    files = [(path.stem, path) for path in folder.glob("*.py") if 'if __name__ == "__main__"' in path.read_text()]
    return files + [(path.parent.name, path) for path in folder.glob("*/__main__.py")]


def study_module(path: pathlib.Path) -> str:
    """The name that `python -m` takes for a study's file."""
    parts = [part for part in path.with_suffix("").parts if part != "__main__"]
    start = len(parts) - 1 - parts[::-1].index("experiments")
    return ".".join(["scalelab", *parts[start:]])


def describe_studies() -> list[dict[str, Any]]:
    """Rows `name`, `module`, `summary`, `cpu_s` and `finding`; the last two are None without a committed result."""
    rows = []
    for name, path in list_studies().items():
        result = _committed_result(name)
        row = {"name": name, "module": study_module(path), "summary": _summary(path)}
        rows.append(row | {key: result.get(key) for key in ("cpu_s", "finding")})
    return rows


def _committed_result(name: str) -> Mapping[str, Any]:
    from scalelab import experiments

    path = pathlib.Path(experiments.__file__).parent / "results" / f"{name}.json"
    content = records.read_json(path) if path.exists() else {}
    return content if isinstance(content, dict) else {}


def _summary(path: pathlib.Path) -> str:
    lines = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()
    return next((line for line in lines if line and not line.startswith("python -m")), path.stem)


def _listing(rows: list[dict[str, Any]]) -> str:
    """Each study of a phenomenon in a few lines, then the others in one."""
    lines = ["phenomena of training:", ""]
    for row in rows:
        if row["finding"]:
            lines.append(f"{row['name']}  ({row['cpu_s']:.0f} CPU s)")
            lines += textwrap.wrap(row["finding"], 96, initial_indent="    ", subsequent_indent="    ")
    others = [(row["name"], row["summary"]) for row in rows if not row["finding"]]
    return "\n".join([*lines, "", "other studies:", "", *align_columns(others)])
