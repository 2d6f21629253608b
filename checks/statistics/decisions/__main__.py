"""Score what `ablate` and `fit` conclude on cases that were committed before their rules.

    python -m checks.statistics.decisions --column=before|after [--half=open|sealed] [--kinds=ablations,…] [--data=DIR]
        [--studies=N] [--workdir=runs/decisions] [--quick] [--json[=PATH]]

Every case goes through the command as users type it. README.md beside it says what the cases are. DIR is the folder of
run tables (`scalelab reproduce --download=DIR`). Writes one column of `checks/results/decisions.json` and `.md`;
--quick runs 4 studies of each universe and writes into the workdir. Half an hour on one core. Run it again to resume.

    python -m checks.statistics.decisions --column=after --quick
"""

import functools
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from checks.shared import RESULTS, command_line, result_header
from checks.statistics.decisions import door, intervals, page, verdicts
from scalelab.__main__ import guarded
from scalelab.cli.parser import folder_path
from scalelab.errors import BadInput
from scalelab.experiments.shared import publish_result
from scalelab.record import records

KINDS = ("ablations", "noise", "fits", "exports", "tables")
QUICK_STUDIES = 4


def measure(kind: str, half: str, studies: int | None, data: pathlib.Path, folder: pathlib.Path) -> list[door.Row]:
    """The scores of one kind of cases; `studies`: of each universe, None for as many as the cases say, 0 for those
    that are stored.
    """
    if kind == "tables":
        return intervals.score_tables(half, 1 if studies is None else min(studies, 1), data, folder)
    count = int(door.read_cases(kind, half)["studies"]) if studies is None else studies
    score = {
        "ablations": verdicts.score_ablations,
        "noise": functools.partial(verdicts.score_ablations, kind="noise"),
        "fits": intervals.score_fits,
        "exports": intervals.score_exports,
    }[kind]
    return score(half, count, folder)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, cwd=door.HERE)
    return done.stdout.strip() or "unknown"


def _header(kind: str, argv: Sequence[str], folder: pathlib.Path, studies: int | None) -> dict[str, Any]:
    """Command, date, versions and commit of the code that ran the studies; of stored ones, as it was stored."""
    path = folder / f"{kind}-header.json"
    if studies == 0 and path.exists():
        return dict(records.read_json(path))
    header = result_header("statistics.decisions", argv) | {"commit": _commit()}
    records.write_json(path, header)
    return header


def main(argv: Sequence[str]) -> int:
    """Run the check; exit code 0, or 2 for bad input."""
    return guarded("decisions", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("statistics.decisions", __doc__)
    parser.add_argument("--column", choices=("before", "after"), default="after", help="which column is written")
    parser.add_argument("--half", choices=("open", "sealed"), default="open", help="which half of the cases")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="A,B", help=", ".join(KINDS))
    parser.add_argument("--data", type=folder_path, default=pathlib.Path("../shared/data"), metavar="DIR")
    parser.add_argument(
        "--studies", type=int, metavar="N", help="of each universe; 0: those stored (default: as its cases say)"
    )
    parser.add_argument("--workdir", type=folder_path, default=pathlib.Path("runs/decisions"), metavar="DIR")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STUDIES} studies of each, nothing committed")
    options = parser.parse_args(list(argv))
    kinds = options.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise BadInput(f"--kinds={unknown[0]}: no such kind; the kinds are {', '.join(KINDS)}")
    studies = QUICK_STUDIES if options.quick else options.studies
    folder = options.workdir / options.half / options.column
    folder.mkdir(parents=True, exist_ok=True)
    place = options.workdir if options.quick else RESULTS
    path = place / "decisions.json"
    headers = {kind: _header(kind, argv, folder, studies) for kind in kinds}
    scored = {kind: measure(kind, options.half, studies, options.data, folder) for kind in kinds}
    result: dict[str, Any] = dict(records.read_json(path)) if path.exists() else {}
    for kind, scores in scored.items():
        result.setdefault(options.half, {}).setdefault(kind, {})[options.column] = {
            "header": headers[kind],
            "scores": scores,
        }
    return publish_result(place, "decisions", result, page.make_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
