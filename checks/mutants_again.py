"""Lines that a test noticed when they were wrong, or that got a test since, each against that test alone.

    python -m checks.mutants_again --clone=DIR [--only=9,20,…]

Minutes, where `checks.mutants run` takes hours: after tests moved between `make test` and `make test-all`, which part
notices now what was noticed then? DIR is a clone with a .venv; it is edited. With --only the other lines keep their
verdicts, with the commit that they are of. Writes checks/results/mutants_again.*.

    python -m checks.mutants_again --clone=../clone
"""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

from checks.mutants.clone import LIST, find_line, read_mutants, write_line
from checks.mutants.run import PARTS, list_tests, try_mutant
from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.errors import BadInput
from scalelab.experiments.shared import write_result

# The test of a line that none had noticed, or one by chance, or that was not asked: most were written since.
SINCE = {
    "9": "tests/hardware/test_device_memory.py::test_gddr6_with_ecc_is_a_sixteenth_smaller",
    "20": "tests/parallel/test_refusals.py::test_one_device_takes_sequences_of_odd_length",
    "22": "tests/parallel/test_refusals.py::test_several_processes_are_refused_a_mesh_of_one_device",
    "23": "tests/parallel/test_refusals.py::test_a_mesh_in_words",
    "28": "tests/soundness/test_size.py::test_parameters_are_those_of_the_declarations",
    "29": "tests/soundness/test_size.py::test_parameters_are_those_of_the_declarations",
    "30": "tests/soundness/test_edits.py::test_forty_edits_of_one_value_are_each_named",
    "31": "tests/soundness/test_size.py::test_parameters_are_those_of_the_declarations",
    "34": "tests/stores/test_mirror.py::test_a_full_part_is_sent_once_however_often_the_file_grows",
    "39": "tests/test_testing.py::test_a_law_is_checked_first_where_its_points_determine_it_best",
}
EQUIVALENT = {  # changes that change no answer, so that no test can notice them
    "1": "two processes look at the devices instead of one",
    "7": "a process that fails waits 20 s for a lock that hangs, not 10",
    "8": "the product that tries the device has 257 rows, not 256",
    "25": "a search ends at 2e30 tokens, not at 1e30",
    "26": "the bandwidth along one axis does not depend on the size of another",
    "35": "both lists have one entry a file, by construction",
    "37": "other tokens for a contract that holds for all",
    "38": "another length for a contract that holds for all",
}


def main(argv: Sequence[str]) -> int:
    """Tries each mutant again and writes the verdicts; exit code 0, 2 for bad input."""
    return guarded("mutants_again", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("mutants_again", __doc__)
    parser.add_argument("--clone", type=pathlib.Path, metavar="DIR", help="a clone with a .venv; it is edited")
    parser.add_argument("--seconds", type=int, default=300, help="of one test; what is not done then has not failed")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="N,…", help="lines; default: all")
    options = parser.parse_args(argv)
    if options.clone is None or not (options.clone / ".venv").exists():
        raise BadInput(f"--clone={options.clone}: is not a clone with a .venv; `make setup` in one makes it")
    before = json.loads((RESULTS / "mutants.json").read_text())
    kept = json.loads((RESULTS / "mutants_again.json").read_text()) if options.only else {"mutants": {}}
    head = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(head, cwd=options.clone, capture_output=True, text=True).stdout.strip()
    verdicts = {number: (*verdict, kept["clone"])[:3] for number, verdict in kept["mutants"].items()}
    for number, verdict in try_again(options.clone, choose_lines(before["mutants"], options.only), options.seconds):
        verdicts[number] = (*verdict, commit)
    verdicts = dict(sorted(verdicts.items(), key=lambda item: int(item[0])))
    result = result_header("mutants_again", argv) | {"clone": commit, "before": before["commit"], "mutants": verdicts}
    write_result(RESULTS, "mutants_again", result, make_page(result))
    return 0


def choose_lines(before: dict[str, list[str]], only: Sequence[str] | None) -> dict[str, str]:
    """{mutant: its test} of those that a test noticed before or that have one since, in the order of the list."""
    noticed = {number: answer for number, (verdict, answer) in before.items() if verdict in PARTS} | SINCE
    return {number: noticed[number] for number in sorted(noticed, key=int) if not only or number in only}


def try_again(clone: pathlib.Path, lines: dict[str, str], seconds: int) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield (mutant, (the part of the suite that notices it, what its test says)) for each mutant and its test."""
    os.environ["PYTHONPATH"] = str(clone.resolve())  # a .venv that is a link has another checkout installed
    names = {number: locate_test(clone, name_test(answer)) for number, answer in lines.items()}
    files = sorted({name.split("::")[0] for name in names.values()})
    parts, mutants = {name: list_tests(clone, marks, files) for name, marks in PARTS.items()}, read_mutants(LIST)
    for number, name in names.items():
        place = find_line(clone, mutants[int(number)])
        if place is None:
            continue
        chosen = {part: find_tests(list(tests.values()), name) for part, tests in parts.items()}
        text = write_line(*place, mutants[int(number)], "after")
        try:
            verdict = try_mutant(clone, chosen, seconds)
        finally:
            place[0].write_text(text)
        print(f"{number}: {', '.join(verdict)}", flush=True)
        yield number, verdict


def name_test(answer: str) -> str:
    """FAILED tests/a/test_b.py::test_c - AssertionError -> tests/a/test_b.py::test_c; a file that failed as it is."""
    return answer.split(" - ")[0].removeprefix("FAILED ").removeprefix("ERROR ")


def locate_test(clone: pathlib.Path, name: str) -> str:
    """The id of a test in a clone whose file may have gone to another folder since."""
    file, *test = name.split("::")
    if not (clone / file).exists():
        file = str(next((clone / "tests").rglob(pathlib.Path(file).name)).relative_to(clone))
    return "::".join([file, *test])


def find_tests(tests: list[str], name: str) -> list[str]:
    """The test of this id, all cases of this function; for a file that could not be collected, its first test."""
    return [test for test in tests if test == name or test.startswith(f"{name}[")] or [
        test for test in tests if test.startswith(f"{name}::")
    ][:1]


def make_page(result: dict) -> str:
    """The verdicts as a page."""
    mutants, told = read_mutants(LIST), [verdict for verdict, *_ in result["mutants"].values()]
    counts = ", ".join(f"{told.count(name)} by {name}" for name in (*PARTS, "none"))
    rows = "".join(
        f"| {mutants[int(number)]['file']} | {verdict} | {answer.removeprefix('FAILED ').replace('|', '/')} | {at} |\n"
        for number, (verdict, answer, at) in result["mutants"].items()
    )
    same = "".join(f"| {mutants[int(number)]['file']} | {why} |\n" for number, why in EQUIVALENT.items())
    gone = len(mutants) - len(told) - len(EQUIVALENT)
    return f"""# Lines that a test noticed, again

`python -m checks.mutants_again` at commit {result["clone"]}: each change that [a test noticed](mutants.md) at
{result["before"]}, against that test alone; lines that none noticed, that one noticed by chance or that were not asked,
against the test named in the program, most of them written since.

Noticed: {counts}; of {len(told)}. No test can notice {len(EQUIVALENT)} others, listed below; gone: {gone}.

| line | noticed by | test | at commit |
|---|---|---|---|
{rows}
| line | why its change changes no answer |
|---|---|
{same}"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
