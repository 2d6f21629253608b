"""Each mutant against the tests that reach its line: those of `make test` first, then the others of `make test-all`."""

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from checks.mutants.clone import LIST, find_line, read_mutants, write_line
from checks.shared import result_header

PLAIN = "--strict-markers --import-mode=importlib"  # pytest's options but for marks
OTHERS = "not crash and not slow and not slurm"
PARTS = {"make test": f"not full and {OTHERS}", "make test-all": f"full and {OTHERS}"}


def list_tests(clone: pathlib.Path, marks: str, files: Sequence[str] = ()) -> dict[str, str]:
    """{file name and test: its id} of tests selected by marks: a test is recognized wherever its file went.

    `files`: where to look; by default everywhere.
    """
    collect = ["--collect-only", "-q", "-o", f"addopts={PLAIN}", "-m", marks]
    command = [clone / ".venv/bin/python", "-m", "pytest", *collect, *files]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"tests of {clone} can't be listed: {done.stdout[-500:]}")
    tests = [line for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line]
    return {_short(test): test for test in tests}


def _short(test: str) -> str:
    """tests/plan/test_a.py::test_b[c/d] -> test_a.py::test_b[c/d]."""
    path, _, name = test.partition("::")
    return f"{path.rpartition('/')[2]}::{name}"


def run_tests(clone: pathlib.Path, tests: list[str], seconds: int) -> tuple[bool, str]:
    """Whether a test fails, and which: pytest until the first failure. What is not done in time has not failed."""
    names = clone / "mutant-tests.txt"
    names.write_text("\n".join(tests))
    command = [clone / ".venv/bin/python", "-m", "pytest", "-x", "-n0", "-p", "no:cacheprovider", f"@{names.name}"]
    try:
        done = subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return False, f"not done after {seconds} s"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode == 0:
        return False, f"{len(tests)} tests passed"
    return True, (failed or done.stdout.splitlines()[-1:] or ["pytest failed"])[0][:200]


def try_mutant(clone: pathlib.Path, parts: dict[str, list[str]], seconds: int) -> tuple[str, str]:
    """(the first part of the suite that notices what the clone holds, its test), or ("none", what each part said)."""
    answers = []
    for part, tests in parts.items():
        if tests:
            caught, answer = run_tests(clone, tests, seconds)
            if caught:
                return part, answer
            answers.append(f"{part}: {answer}")
    verdict = "not done" if any("not done" in answer for answer in answers) else "none"
    return verdict, "; ".join(answers) or "no test reaches it"


def choose_tests(tests: dict[str, str], reached: list[str], room: str, cost: dict[str, float]) -> list[str]:
    """The tests of a part that reach a line, the cheapest first; a line that only an import runs: those of its room."""
    names = {_short(test) for test in reached}
    chosen = [test for name, test in tests.items() if (name in names if names else test.startswith(f"tests/{room}/"))]
    return sorted(chosen, key=lambda test: (cost.get(test, 0.0), test))


def run_mutants(clone: pathlib.Path, reached: dict[int, list[str]], options: argparse.Namespace) -> None:
    """Each mutant in turn; what is in the result already is not run again."""
    name = "mutants" if options.list.resolve() == LIST else f"mutants_of_{options.list.stem}"
    mutants, path = read_mutants(options.list), options.out / f"{name}.json"
    results = json.loads(path.read_text())["mutants"] if path.exists() else {}
    header = result_header("mutants", sys.argv[1:])
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=clone, capture_output=True, text=True).stdout
    parts = {part: list_tests(clone, marks) for part, marks in PARTS.items()}
    cost = dict(map(json.loads, options.times.read_text().splitlines())) if options.times else {}
    for number in sorted(set(map(int, options.only or range(len(mutants)))) - set(map(int, results))):
        mutant = mutants[number]
        place, room = find_line(clone, mutant), mutant["file"].split("/")[1]
        if place is None:
            results[str(number)] = ("gone", mutant["before"].strip())
        else:
            chosen = {part: choose_tests(tests, reached.get(number, []), room, cost) for part, tests in parts.items()}
            text = write_line(*place, mutant, "after")
            try:
                results[str(number)] = try_mutant(clone, chosen, options.seconds)
            finally:
                place[0].write_text(text)
        facts = header | {"commit": commit.strip(), "seconds": options.seconds, "list": options.list.name}
        write_page(options.out, name, mutants, results, facts)
        print(f"{number} {mutant['file']}:{mutant['line']}: {': '.join(results[str(number)])}", flush=True)


def write_page(
    folder: pathlib.Path, name: str, mutants: Sequence[dict], results: dict[str, Any], facts: dict[str, Any]
) -> None:
    """The verdicts as NAME.json and NAME.md."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(facts | {"mutants": results}, indent=1) + "\n")
    verdicts = [verdict for verdict, _ in results.values()]
    counts = ", ".join(f"{verdicts.count(name)} by {name}" for name in (*PARTS, "none"))
    page = f"""# Which part of the suite notices a wrong line

`python -m checks.mutants run` at commit {facts["commit"]}: each change of {facts["list"]} against the
tests that reach its line, those of `make test` first, then the others of `make test-all`.

Noticed: {counts}; {verdicts.count("not done")} not done in time, {verdicts.count("gone")} gone.
Asked: {len(verdicts)} of {len(mutants)}.

| line | change | noticed by | test |
|---|---|---|---|
"""
    for number, (verdict, answer) in sorted(results.items(), key=lambda item: int(item[0])):
        before, after = (mutants[int(number)][key].strip().replace("|", "\\|") for key in ("before", "after"))
        test = answer.removeprefix("FAILED ").replace("|", "\\|")
        page += f"| {mutants[int(number)]['file']} | `{before}` -> `{after}` | {verdict} | {test} |\n"
    (folder / f"{name}.md").write_text(page)
