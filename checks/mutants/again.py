"""The mutants that a test noticed, each against that test alone, in whichever part of the suite that is now."""

import json
import os
import pathlib
import subprocess
from typing import Any

from checks.mutants.clone import find_line, read_mutants, write_line
from checks.mutants.run import PARTS, list_tests, try_mutant, write_page


def run_again(clone: pathlib.Path, out: pathlib.Path, seconds: int) -> None:
    """Adds to the results in `out` what each noticing test says of its mutant in the clone; the others stay."""
    os.environ["PYTHONPATH"] = str(clone.resolve())  # a .venv that is a link has another checkout installed
    kept: dict[str, Any] = json.loads((out / "mutants.json").read_text())
    parts, mutants, verdicts = {name: list_tests(clone, marks) for name, marks in PARTS.items()}, read_mutants(), {}
    for number, (verdict, answer) in kept["mutants"].items():
        place = find_line(clone, mutants[int(number)])
        if verdict not in PARTS or place is None:
            continue
        test = answer.split(" - ")[0].removeprefix("FAILED ").removeprefix("ERROR ")
        chosen = {part: find_test(list(tests.values()), test) for part, tests in parts.items()}
        text = write_line(*place, mutants[int(number)], "after")
        try:
            verdicts[number] = try_mutant(clone, chosen, seconds)
        finally:
            place[0].write_text(text)
        print(f"{number}: {': '.join(verdicts[number])}", flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=clone, capture_output=True, text=True).stdout
    facts = {key: value for key, value in kept.items() if key != "mutants"}
    write_page(out, kept["mutants"], facts | {"again": {"commit": commit.strip(), "mutants": verdicts}})


def find_test(tests: list[str], name: str) -> list[str]:
    """The test of this id; for a file that could not be collected, its first test."""
    return [test for test in tests if test == name or test.startswith(f"{name}::")][:1]
