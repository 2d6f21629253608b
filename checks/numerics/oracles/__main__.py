"""Every optimizer of ours against somebody else's implementation: 30 steps on the same gradients.

    make test-oracles      or, in its environment: python -m checks.numerics.oracles [--only=adamw,mup] [--json[=PATH]]

Ours goes through the whole chain in fp32, with all parameters of a small model; theirs updates the same parameters in
float64 where it can. The difference is that of the total update, relative, of the parameter where it is largest. Beside
the optimizers: muP's multipliers against the package of its authors, the loss scale against torch's. The whole is
written to checks/results/oracles.*. The papers' recurrences in numpy are another test: `make test`.

    python -m checks.numerics.oracles
"""

import datetime
import importlib.metadata
import os
import pathlib
import sys
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

from rich.console import Console
from rich.table import Table

from checks.numerics.oracles import beyond, problem
from checks.numerics.oracles.cases import CASES, OracleCase
from checks.shared import RESULTS, command_line
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json
from scalelab.errors import BadInput, nearest_hint
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.train.lineage.facts import package_versions

REQUIREMENTS = pathlib.Path(__file__).resolve().parents[3] / "requirements-oracles.txt"
COLUMNS = ("what", "setting", "against", "difference", "tolerance", "note")


def main(argv: list[str]) -> int:
    """Run the oracles; exit code 0 if every difference is within its tolerance, 1 if one isn't, 2 for bad input."""
    return guarded("oracles", _main, argv)


def _main(argv: list[str]) -> int:
    parser = command_line("numerics.oracles", __doc__)
    known = [*dict.fromkeys(case.optimizer for case in CASES), "mup", "loss scale"]
    parser.add_argument("--only", default=",".join(known), metavar="A,B", help=f"of {', '.join(known)}")
    options = parser.parse_args(argv)
    chosen = options.only.split(",")
    for name in chosen:
        if name not in known:
            raise BadInput(f"--only={name}: there is no such row{nearest_hint(name, known)}")
    rows = [compare_case(case) for case in CASES if case.optimizer in chosen]
    if {"mup", "loss scale"} & set(chosen):
        rows += [r for r in beyond.compare_beyond() if r["what"] in chosen]
    result = {
        "command": "make test-oracles",
        "date": str(datetime.date.today()),
        "versions": installed_versions(),
        "rows": rows,
    }
    if options.json != "-":
        table = Table(*COLUMNS)
        for line in table_cells(rows):
            table.add_row(*line)
        Console(width=200).print(table)
    if chosen == known:
        write_oracles(result)
    emit_json(result, options.json)
    return 0 if all(r["tolerance"] is None or r["difference"] <= r["tolerance"] for r in rows) else 1


def compare_case(case: OracleCase) -> dict[str, Any]:
    """Run one comparison; return its row."""
    print(f"{case.optimizer} {case.changes}", file=sys.stderr, flush=True)
    both = problem.make_problem(case.optimizer, case.changes, case.dtype, case.transposed)
    difference = problem.relative_difference(problem.our_updates(both), problem.oracle_updates(both, case.oracle))
    setting = ", ".join(f"{key.removeprefix('optim.')}={value}" for key, value in case.changes.items())
    facts = {"what": case.optimizer, "setting": setting, "oracle": case.says, "difference": difference}
    return facts | {"tolerance": case.tolerance, "note": case.note}


def installed_versions() -> dict[str, str]:
    """Our versions and those of requirements-oracles.txt."""
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if "==" in line]
    return package_versions() | {
        name: importlib.metadata.version(name) for name in (line.split("==")[0] for line in lines)
    }


def table_cells(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The cells of the table for people."""
    cells = []
    for r in rows:
        tolerance = "other formula" if r["tolerance"] is None else f"{r['tolerance']:.2g}"
        cells.append((r["what"], r["setting"], r["oracle"], f"{r['difference']:.1e}", tolerance, r["note"]))
    return cells


def write_oracles(result: dict[str, Any]) -> None:
    """Write results/oracles.json and .md."""
    packages = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = ["# Oracles", "", __doc__.partition("    make")[0].strip(), "",
        f"`make test-oracles` on {result['date']} ({packages}):", ""]  # fmt: skip
    table = markdown_table(COLUMNS, table_cells(result["rows"]))
    write_result(RESULTS, "oracles", result, "\n".join([*lines, *table]) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
