"""Runs a command as users type it, and stores what each study gave."""

import contextlib
import io
import json
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scalelab.__main__ import main
from scalelab.record import records

HERE = pathlib.Path(__file__).parent
Row = dict[str, Any]


class Answer(NamedTuple):
    """What a command gave: its exit code, all that it printed, and its JSON (empty if it was refused)."""

    code: int
    text: str
    result: dict[str, Any]

    @property
    def refusal(self) -> str:
        """The line of a refusal or failure; "" if the command was done."""
        return "" if self.code == 0 else self.text.strip().splitlines()[-1][:300]


def ask(arguments: Sequence[str], folder: pathlib.Path) -> Answer:
    """Run `scalelab ARGUMENTS --json=…` in this process."""
    path = folder / "answer.json"
    path.unlink(missing_ok=True)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = main([*arguments, f"--json={path}"])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except Exception as mistake:  # a traceback is a result too: scored as a failure, the other studies go on
            return Answer(70, f"{output.getvalue()}\n{type(mistake).__name__}: {mistake}", {})
    result = json.loads(path.read_text()) if code == 0 and path.exists() else {}
    return Answer(code, output.getvalue(), result)


def read_cases(kind: str, half: str) -> dict[str, Any]:
    """The universes of a kind (ablations, fits, exports) in the open or the sealed half."""
    return dict(json.loads((HERE / half / f"{kind}.json").read_text()))


def run_studies(path: pathlib.Path, name: str, count: int, study: Callable[[int], Row]) -> list[Row]:
    """The rows of `count` studies; those that are stored are not run again."""
    done = [row for row in records.read_json_lines(path, damaged=[]) if row["universe"] == name]
    for i in range(len(done), count):
        done.append({"universe": name, "study": i} | study(i))
        records.append_json_lines(path, done[-1:])
    print(f"{path.stem}: {name}: {count} studies", file=sys.stderr, flush=True)
    return done[:count]


def share(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The mean of a key over the rows that have it; None if none has."""
    values = [float(row[key]) for row in rows if row.get(key) is not None]
    return sum(values) / len(values) if values else None


def holds(interval: Sequence[float | None] | None, truth: float) -> bool:
    """Whether an interval holds a value; an end of None is open, no interval holds nothing."""
    if interval is None:
        return False
    low, high = interval
    return (low is None or low <= truth) and (high is None or truth <= high)
