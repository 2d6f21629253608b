"""Run the fault table: what is done to runs, files and configs, and the tests that show that it is survived.

    python -m checks.hostile.faults [--cases=1,22,81] [--jobs=2]

`faults.toml` beside this file lists the cases with their tests, the slow ones included. Each test file is run once;
after an interruption the same command goes on with the files that are missing or failed, as long as scalelab, configs
and the tests' helpers have not changed. A case is survived if all its tests pass, wrong if one fails, and not tried if
it has no test or all are skipped here. Writes `checks/results/faults.json` and `.md`, or into --workdir; with --cases
it only prints. About half an hour on 2 cores. Exit 1 where a case is wrong.

    python -m checks.hostile.faults --cases=31
"""

import dataclasses
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import BadInput
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.record import jsonfiles

TABLE = pathlib.Path(__file__).parent / "faults.toml"
VERDICTS = ("survived", "wrong", "not tried")
_ROOT = pathlib.Path(__file__).resolve().parents[2]
_HASHED_FOLDERS = ("scalelab", "configs", "tests")

Outcomes = dict[str, dict[str, int]]  # test -> how many of its variants passed, failed, were skipped


@dataclasses.dataclass(frozen=True)
class Case:
    """A row of the table: its number, the chapter, the fault, tests that show it, and what they leave out."""

    number: int
    chapter: str
    fault: str
    tests: tuple[str, ...]
    missing: str = ""


def read_table(path: pathlib.Path = TABLE) -> list[Case]:
    """Read the cases of `faults.toml` in their order."""
    chapters = tomllib.loads(path.read_text())
    return [
        Case(int(number), chapter, row["fault"], tuple(row["tests"]), row.get("missing", ""))
        for chapter, rows in chapters.items()
        for number, row in rows.items()
    ]


def choose_cases(cases: Sequence[Case], text: str | None) -> list[Case]:
    """The cases whose numbers stand in `text`, separated by commas (None: all); BadInput if one is not there."""
    if text is None:
        return list(cases)
    numbers = [case.number for case in cases]
    for part in text.split(","):
        if not part.isdecimal() or int(part) not in numbers:
            raise BadInput(f"--cases={text!r}: {part!r} is not the number of a case; they go from 1 to {max(numbers)}")
    return [case for case in cases if str(case.number) in text.split(",")]


def run_file(file: str, tests: Sequence[str], jobs: int) -> Outcomes:
    """Run some tests of one file, slow ones included. Bytecode and caches stay out of the checkout."""
    with tempfile.TemporaryDirectory() as temporary:
        report = pathlib.Path(temporary) / "tests.xml"
        options = ["-m", "", "-p", "no:cacheprovider", "-n", str(jobs), f"--junitxml={report}", "--no-header"]
        command = [sys.executable, "-m", "pytest", *options, *(f"{file}::{test}" for test in tests)]
        subprocess.run(command, cwd=_ROOT, stdout=sys.stderr)
        return _read_outcomes(report) if report.exists() else {}


def _read_outcomes(path: pathlib.Path) -> Outcomes:
    outcomes: Outcomes = {}
    for case in xml.parse(path).getroot().iter("testcase"):
        tags = {child.tag for child in case}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        counts = outcomes.setdefault(str(case.get("name")).partition("[")[0], {})
        counts[outcome] = counts.get(outcome, 0) + 1
    return outcomes


def run_or_read(file: str, tests: Sequence[str], jobs: int, folder: pathlib.Path) -> Outcomes:
    """The outcomes of `run_file`, stored in `folder`: read from there if the same code passed the same tests before."""
    path = folder / f"{file.removesuffix('.py').replace('/', '.')}.json"
    request = {"code": hash_code(file), "tests": list(tests)}
    part = jsonfiles.read_json(path) if path.exists() else {}
    failed = any(counts.get("failed") for counts in part.get("outcomes", {}).values())
    if part.get("request") == request and part["outcomes"] and not failed:  # a run that was killed has failures too
        print(f"{file}: read from {path}", file=sys.stderr, flush=True)
    else:
        print(f"{file}: {len(tests)} tests", file=sys.stderr, flush=True)
        part = {"request": request, "outcomes": run_file(file, tests, jobs)}
        jsonfiles.write_json(path, part)
    outcomes: Outcomes = part["outcomes"]
    return outcomes


def hash_code(file: str) -> str:
    """SHA-256 of scalelab, the configs, the helpers of tests and one test file (other test files are left out)."""
    paths = [path for name in _HASHED_FOLDERS for path in (_ROOT / name).rglob("*.py")]
    shared = [path for path in paths if not path.name.startswith("test_")]
    sha = hashlib.sha256()
    for path in sorted([*shared, _ROOT / file]):
        sha.update(f"{path.relative_to(_ROOT)}\0".encode() + path.read_bytes())
    return sha.hexdigest()


def run_cases(cases: Sequence[Case], jobs: int, folder: pathlib.Path) -> list[dict[str, Any]]:
    """Run every test of the cases once, file by file, and judge each case."""
    nodes = sorted({test for case in cases for test in case.tests})
    files = sorted(
        {node.partition("::")[0] for node in nodes}, key=lambda file: ("crash" in file, file)
    )  # longest last
    if absent := [file for file in files if not (_ROOT / file).exists()]:
        raise BadInput(f"{absent[0]} is not in {_ROOT}: the fault table runs in a checkout, with its tests")
    outcomes: Outcomes = {}
    for file in files:
        names = [node.partition("::")[2] for node in nodes if node.partition("::")[0] == file]
        results = run_or_read(file, names, jobs, folder)
        outcomes |= {f"{file}::{name}": results.get(name, {"failed": 1}) for name in names}  # none: it did not start
    return [judge_case(case, {test: outcomes[test] for test in case.tests}) for case in cases]


def judge_case(case: Case, outcomes: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """A row of the result: the case, its verdict, and how many variants of its tests had which outcome."""
    total = sum((Counter(counts) for counts in outcomes.values()), Counter())
    verdict = "wrong" if total["failed"] else "survived" if total["passed"] else "not tried"
    failed = [test for test, counts in outcomes.items() if counts.get("failed")]
    counts = {key: total[key] for key in ("passed", "failed", "skipped")}
    return dataclasses.asdict(case) | {"verdict": verdict, **counts, "failures": failed}


def describe_totals(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say in one line how many cases were tried, survived and wrong, and how many were not tried."""
    verdicts = Counter(row["verdict"] for row in rows)
    tried = len(rows) - verdicts["not tried"]
    counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS)
    partly = sum(bool(row["missing"]) and row["verdict"] != "not tried" for row in rows)
    return f"{len(rows)} cases: {tried} tried, {counts}" + (f"; {partly} of them in part" if partly else "")


def format_page(result: Mapping[str, Any]) -> str:
    """Format the result in Markdown."""
    rows = result["cases"]
    lines = ["# The fault table", "", f"`{result['command']}`, {result['date']}: {result['machine']}", ""]
    lines += [f"{describe_totals(rows)}. Tests with their variants: {sum(row['passed'] for row in rows)} passed, "]
    lines[-1] += f"{sum(row['failed'] for row in rows)} failed, {sum(row['skipped'] for row in rows)} skipped here."
    for chapter in dict.fromkeys(row["chapter"] for row in rows):
        lines += ["", f"## {chapter}", ""]
        chapter_rows = [row for row in rows if row["chapter"] == chapter]
        lines += markdown_table(("case", "fault", "verdict", "tests passed"), map(_cells, chapter_rows))
    failures = [(row["number"], test) for row in rows for test in row["failures"]]
    lines += ["", *(f"- case {number}: {test} failed" for number, test in failures)]
    return "\n".join(lines).rstrip() + "\n"


def _cells(row: Mapping[str, Any]) -> list[str]:
    verdict = row["verdict"] + (f" ({row['missing']})" if row["missing"] else "")
    total = row["passed"] + row["failed"] + row["skipped"]
    return [str(row["number"]), row["fault"], verdict, f"{row['passed']} of {total}" if total else "-"]


def main(argv: Sequence[str]) -> int:
    """Run the table, write the result, print the counts. Exit code: 0 none wrong, 1 a case is wrong, 2 bad input."""
    return guarded("faults", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("hostile.faults", __doc__)
    parser.add_argument("--cases", help="numbers of cases, separated by commas (default: all)")
    parser.add_argument("--jobs", type=int, default=0, help="pytest's workers (default: one test after the other)")
    parser.add_argument("--workdir", type=folder_path, default=RESULTS, help="where the two files are written")
    options = parser.parse_args(argv)
    parts = options.workdir / "faults.parts"
    cases = choose_cases(read_table(), options.cases)
    rows = run_cases(cases, options.jobs, parts)
    result = result_header("hostile.faults", argv) | {"cases": rows}
    if options.cases is None:
        write_result(options.workdir, "faults", result, format_page(result))
        shutil.rmtree(parts)
    for row in rows:
        if row["verdict"] != "survived":
            print(f"{row['number']} {row['fault']}: {row['verdict']} {row['missing']}".rstrip())
            print("".join(f"  {test}\n" for test in row["failures"]), end="")
    print(describe_totals(rows))
    emit_json(result, options.json)
    return 1 if any(row["verdict"] == "wrong" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
