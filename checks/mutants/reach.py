"""A probe in the line of each mutant: the tests of a clone then note which of them run it."""

import pathlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from checks.mutants.clone import find_line, write_line

PROBE = '''"""Notes which test runs which probed line: one line a pair in the file $SCALELAB_REACHED."""
import os

seen = set()


def note(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" (", 1)[0]
    if test and (number, test) not in seen:
        seen.add((number, test))
        with open(os.environ["SCALELAB_REACHED"], "a") as file:
            file.write(f"{number} {test}\\n")
'''


def put_probes(clone: pathlib.Path, mutants: Sequence[dict[str, Any]]) -> None:
    """Every mutant's expression E becomes (note(number), E)[1]; a line that holds two is probed once for each."""
    site = next((clone / ".venv/lib").glob("python*/site-packages"))
    (site / "scalelab_reached.py").write_text(PROBE)
    for number, mutant in enumerate(mutants):
        place = find_line(clone, mutant)
        if place is None:
            print(f"{number}: gone: {mutant['before'].strip()}")
            continue
        raw = mutant["before"].encode()
        start, end = mutant["start"], mutant["end"]
        probe = f"(__import__('scalelab_reached').note({number}), ".encode()
        probed = (raw[:start] + probe + raw[start:end] + b")[1]" + raw[end:]).decode()
        write_line(*place, mutant | {"probed": probed}, "probed")


def read_reached(path: pathlib.Path) -> dict[int, list[str]]:
    """{mutant: tests that run its line}, those of its own room first."""
    reached: dict[int, set[str]] = defaultdict(set)
    for line in path.read_text().splitlines():
        number, test = line.split(" ", 1)
        reached[int(number)].add(test)
    return {number: sorted(tests) for number, tests in reached.items()}
