"""Lines that a test noticed when they were wrong, each against that test alone.

    python -m checks.mutants_again --clone=DIR

Minutes, where `checks.mutants run` takes hours: after tests moved between `make test` and `make test-all`, which part
notices now what was noticed then? DIR is a clone with a .venv; it is edited. Writes checks/results/mutants_again.*.

    python -m checks.mutants_again --clone=../clone
"""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

from checks.mutants.clone import find_line, read_mutants, write_line
from checks.mutants.run import PARTS, list_tests, try_mutant
from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.errors import BadInput
from scalelab.experiments.shared import write_result

# Tests written since, for a line whose noticing test had failed by chance.
SINCE = {"22": "tests/parallel/test_refusals.py::test_several_processes_are_refused_a_mesh_of_one_device"}


def main(argv: Sequence[str]) -> int:
    """Tries each mutant again and writes the verdicts; exit code 0, 2 for bad input."""
    return guarded("mutants_again", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("mutants_again", __doc__)
    parser.add_argument("--clone", type=pathlib.Path, metavar="DIR", help="a clone with a .venv; it is edited")
    parser.add_argument("--seconds", type=int, default=300, help="of one test; what is not done then has not failed")
    options = parser.parse_args(argv)
    if options.clone is None or not (options.clone / ".venv").exists():
        raise BadInput(f"--clone={options.clone}: is not a clone with a .venv; `make setup` in one makes it")
    before = json.loads((RESULTS / "mutants.json").read_text())
    verdicts = try_again(options.clone, before["mutants"], options.seconds)
    head = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(head, cwd=options.clone, capture_output=True, text=True).stdout.strip()
    result = result_header("mutants_again", argv) | {"clone": commit, "before": before["commit"], "mutants": verdicts}
    write_result(RESULTS, "mutants_again", result, make_page(result))
    return 0


def try_again(clone: pathlib.Path, before: dict[str, list[str]], seconds: int) -> dict[str, tuple[str, str]]:
    """{mutant: (the part of the suite that notices it, what its test says)} of those that were noticed before."""
    os.environ["PYTHONPATH"] = str(clone.resolve())  # a .venv that is a link has another checkout installed
    parts, mutants, verdicts = {name: list_tests(clone, marks) for name, marks in PARTS.items()}, read_mutants(), {}
    for number, (verdict, answer) in sorted(before.items(), key=lambda item: int(item[0])):
        place = find_line(clone, mutants[int(number)])
        if verdict not in PARTS or place is None:
            continue
        test = SINCE.get(number) or answer.split(" - ")[0].removeprefix("FAILED ").removeprefix("ERROR ")
        chosen = {part: find_test(list(tests.values()), test) for part, tests in parts.items()}
        text = write_line(*place, mutants[int(number)], "after")
        try:
            verdicts[number] = try_mutant(clone, chosen, seconds)
        finally:
            place[0].write_text(text)
        print(f"{number}: {': '.join(verdicts[number])}", flush=True)
    return verdicts


def find_test(tests: list[str], name: str) -> list[str]:
    """The test of this id; for a file that could not be collected, its first test."""
    return [test for test in tests if test == name or test.startswith(f"{name}::")][:1]


def make_page(result: dict) -> str:
    """The verdicts as a page."""
    mutants, told = read_mutants(), [verdict for verdict, _ in result["mutants"].values()]
    counts = ", ".join(f"{told.count(name)} by {name}" for name in (*PARTS, "none"))
    rows = "".join(
        f"| {mutants[int(number)]['file']} | {verdict} | {answer.removeprefix('FAILED ').replace('|', '/')} |\n"
        for number, (verdict, answer) in result["mutants"].items()
    )
    return f"""# Lines that a test noticed, again

`python -m checks.mutants_again` at commit {result["clone"]}: each change that [a test noticed](mutants.md) at
{result["before"]}, against that test alone (or one written since, where the test had failed by chance).

Noticed: {counts}; of {len(told)}.

| line | noticed by | test |
|---|---|---|
{rows}"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
