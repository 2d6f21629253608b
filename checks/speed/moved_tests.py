"""Lines that tests marked `slow` reach, changed: do the tests that `make test-all` keeps notice what those notice?

    python -m checks.speed.moved_tests --clone=DIR [--only=3,7,…]

moved_tests.json holds lines drawn at random, among those that moved tests run or in rooms of the package, one change
each; they were committed before a test was marked. A line that moved tests run has their names and those of staying
ones. Each change is tried against the moved tests; where one notices, against the staying ones. DIR is a clone with a
.venv; it is edited. Writes checks/results/moved_tests.*; with --only the other lines keep their verdicts.

    python -m checks.speed.moved_tests --clone=../clone
"""

import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from checks.mutants.clone import find_line, write_line
from checks.mutants.run import run_tests
from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.errors import BadInput
from scalelab.experiments.shared import write_result

LIST = pathlib.Path(__file__).with_name("moved_tests.json")


def main(argv: Sequence[str]) -> int:
    """Tries each mutant and writes the verdicts; exit code 0, 1 if a staying test missed what a moved one noticed."""
    return guarded("moved_tests", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("speed.moved_tests", __doc__)
    parser.add_argument("--clone", type=pathlib.Path, metavar="DIR", help="a clone with a .venv; it is edited")
    parser.add_argument("--seconds", type=int, default=300, help="of one side; what is not done then has not failed")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="N,…", help="lines; default: all")
    options = parser.parse_args(argv)
    os.environ["PYTHONPATH"] = str(options.clone.resolve() if options.clone else "")  # a linked .venv has another one
    os.environ["PYTEST_ADDOPTS"] = "-m ''"  # tests that are named, whatever their marks
    if options.clone is None or not (options.clone / ".venv").exists():
        raise BadInput(f"--clone={options.clone} is not a clone with a .venv")
    path = RESULTS / "moved_tests.json"
    verdicts: dict[str, Any] = json.loads(path.read_text())["mutants"] if path.exists() else {}
    for number, mutant in enumerate(json.loads(LIST.read_text())):
        if mutant.get("moved") and (options.only is None or str(number) in options.only):
            verdicts[str(number)] = try_both(options.clone, mutant, options.seconds)
            print(f"{number} {mutant['file']}:{mutant['line']}: {verdicts[str(number)]}", file=sys.stderr, flush=True)
    result = result_header("speed.moved_tests", argv) | {"mutants": verdicts}
    write_result(RESULTS, "moved_tests", result, format_page(result))
    return int(any(verdict["by"] == "moved alone" for verdict in verdicts.values()))


def try_both(clone: pathlib.Path, mutant: dict[str, Any], seconds: int) -> dict[str, str]:
    """Who notices a change (both, none, moved alone), with a test of each side; `gone` if the line is not there."""
    place = find_line(clone, mutant)
    if place is None:
        return {"by": "gone"}
    text = write_line(*place, mutant, "after")
    try:
        noticed, moved = run_tests(clone, mutant["moved"], seconds)
        if not noticed:
            return {"by": "none", "moved": moved}
        noticed, staying = (
            run_tests(clone, mutant["staying"], seconds) if mutant["staying"] else (False, "none runs it")
        )
        return {"by": "both" if noticed else "moved alone", "moved": moved, "staying": staying}
    finally:
        place[0].write_text(text)


def format_page(result: dict[str, Any]) -> str:
    """The page of the verdicts."""
    mutants, verdicts = json.loads(LIST.read_text()), result["mutants"]
    counts = [verdict["by"] for verdict in verdicts.values()]
    unmoved = sum(not mutant.get("moved") for mutant in mutants)
    page = f"""# Tests that went from `make test-rest` to `make test-slow`

`python -m checks.speed.moved_tests`: lines drawn at random, among those that moved tests run or in rooms of the
package, one change each, listed in checks/speed/moved_tests.json before a test was marked. Each change against the
moved tests that run its line; where one notices, against tests that stay and run it.

Of {len(counts)} changes the moved tests notice {counts.count("both") + counts.count("moved alone")}, and the staying
ones {counts.count("both")} of these; the moved tests do not notice {counts.count("none")}. No moved test runs {unmoved}
further lines.

| line | change | noticed by | moved | staying |
|---|---|---|---|---|
"""
    for number, verdict in sorted(verdicts.items(), key=lambda item: int(item[0])):
        mutant = mutants[int(number)]
        before, after = (mutant[key].strip().replace("|", "\\|") for key in ("before", "after"))
        tests = [verdict.get(side, "").removeprefix("FAILED ").replace("|", "\\|") for side in ("moved", "staying")]
        page += f"| {mutant['file']} | `{before}` -> `{after}` | {verdict['by']} | {tests[0]} | {tests[1]} |\n"
    return page


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
