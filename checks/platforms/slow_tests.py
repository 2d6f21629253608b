"""Run the tests marked `slow` file by file, and keep what each file's tests did and on which commit.

    python -m checks.platforms.slow_tests [--tests=tests/stores,tests/test_fork.py] [--jobs=2]

Each file's row is written when its tests have ended, so an interruption loses one file. The same command again runs
what is missing, what failed, and what changed since: the test file itself, or which of its tests are slow. A change of
the library runs nothing again, as each commit is one: a row names the commit on which its tests ran. To begin anew,
delete the result. Writes `checks/results/slow_tests.json` and `.md`, or into --workdir. Hours of CPU. Exit 1 where a
test failed.

    python -m checks.platforms.slow_tests --tests=tests/sweep --jobs=1
"""

import datetime
import hashlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from checks.hostile.stores import run_tests
from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import BadInput, WorkFailed
from scalelab.experiments.fingerprint import KEY
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.record import jsonfiles

COUNTS = ("passed", "failed", "skipped")
_ROOT = pathlib.Path(__file__).resolve().parents[2]


def collect_tests(paths: Sequence[str]) -> dict[str, list[str]]:
    """{file: its slow tests} of some files and folders; BadInput if one is not there, WorkFailed if one cannot load."""
    if absent := [path for path in paths if not (_ROOT / path).exists()]:
        raise BadInput(f"--tests={','.join(paths)}: {absent[0]!r} is not in {_ROOT}")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "slow", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "-o", "addopts=--import-mode=importlib", *paths], cwd=_ROOT, capture_output=True)
    output = done.stdout.decode()
    if done.returncode not in (0, 5):  # 5: none are slow
        raise WorkFailed(f"pytest could not collect the tests:\n{output}{done.stderr.decode()}")
    files: dict[str, list[str]] = {}
    for file, _, name in (line.partition("::") for line in output.splitlines() if "::" in line):
        files.setdefault(file, []).append(name)
    return files


def hash_file(file: str, names: Iterable[str]) -> str:
    """A digest of a test file and the names of its slow tests (helpers mark some)."""
    text = "\n".join(sorted(names)).encode()
    return hashlib.sha256((_ROOT / file).read_bytes() + text).hexdigest()[:16]


def run_file(file: str, names: Sequence[str], jobs: int) -> dict[str, Any]:
    """Run the slow tests of a file: counts of outcomes, failures, and CPU seconds of all processes."""
    digest, before = hash_file(file, names), os.times()
    try:
        cases = run_tests(file, "slow", {}, jobs)
    except FileNotFoundError:  # no report: pytest itself was killed
        cases = []
    after = os.times()
    counts = {key: sum(case["outcome"] == key for case in cases) for key in COUNTS}
    failures = [f"{file}::{case['name']}" for case in cases if case["outcome"] == "failed"]
    if lost := max(0, len(names) - len(cases)):
        counts["failed"] += lost
        failures.append(f"{file}: {lost} tests did not end")
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return {"file": file, **counts, "cpu_s": round(seconds, 1), "failures": failures, "digest": digest}


def run_missing(
    files: Mapping[str, Sequence[str]], result: dict[str, Any], jobs: int, folder: pathlib.Path, argv: Sequence[str]
) -> None:
    """Run the files whose row in `result` is missing, failed or of other tests; write the result after each."""
    rows = {row["file"]: row for row in result.get("files", [])}
    for file, names in files.items():
        row = rows.get(file)
        if row and not row["failed"] and row["digest"] == hash_file(file, names):
            continue
        print(f"{file}: {len(names)} tests", file=sys.stderr, flush=True)
        header = result_header("platforms.slow_tests", argv)
        ended = {"commit": header[KEY]["commit"]}  # of the start: others may commit while it runs
        row = run_file(file, names, jobs)
        rows[file] = row | ended | {"ended": datetime.datetime.now().isoformat(" ", "minutes")}
        missing = {*result.get("missing", []), *files} - {*rows}
        rows = {name: row for name, row in sorted(rows.items()) if (_ROOT / name).exists()}
        header[KEY]["cpu_s"] = round(sum(row["cpu_s"] for row in rows.values()), 1)
        result |= header | {"missing": sorted(missing), "files": list(rows.values())}
        write_result(folder, "slow_tests", result, format_page(result))


def format_page(result: Mapping[str, Any]) -> str:
    """Format the result in Markdown."""
    rows, missing = result["files"], result["missing"]
    rooms: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        rooms.setdefault("/".join(pathlib.PurePath(row["file"]).parts[:-1][:2]), []).append(row)
    lines = ["# The slow tests", "", f"`{result['command']}`, {result['date']}: {result['machine']}", ""]
    lines += [f"{describe_totals(rows)}. Files that have not run: {', '.join(missing) or 'none'}.", ""]
    table = ((f"{room}, {len(members)} files", members) for room, members in sorted(rooms.items()))
    lines += markdown_table(("tests", *COUNTS, "CPU s", "commit", "ended"), (_cells(*each) for each in table))
    if failures := [name for row in rows for name in row["failures"]]:
        lines += ["", "## Failed", "", *(f"- `{name}`" for name in failures)]
    lines += ["", "## Files", ""]
    lines += markdown_table(("file", *COUNTS, "CPU s", "commit", "ended"), (_cells(row["file"], [row]) for row in rows))
    return "\n".join([*lines, ""])


def _cells(name: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    ordered = sorted(rows, key=lambda row: row["ended"])
    first, last = ordered[0], ordered[-1]
    spans = [first[key] if first[key] == last[key] else f"{first[key]} to {last[key]}" for key in ("commit", "ended")]
    return [
        name,
        *(str(sum(row[key] for row in rows)) for key in COUNTS),
        f"{sum(r['cpu_s'] for r in rows):.0f}",
        *spans,
    ]


def describe_totals(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say in one line how many tests passed, failed and were skipped, in how many files and CPU seconds."""
    counts = ", ".join(f"{sum(row[key] for row in rows)} {key}" for key in COUNTS)
    return f"{len(rows)} files: {counts}; {sum(row['cpu_s'] for row in rows):.0f} CPU seconds"


def main(argv: Sequence[str]) -> int:
    """Run what is missing, write the result, print the failures. Exit code: 0 none failed, 1 one did, 2 bad input."""
    return guarded("slow_tests", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("platforms.slow_tests", __doc__)
    parser.add_argument("--tests", default="tests", help="files and folders, separated by commas (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="pytest's workers (default: 1)")
    parser.add_argument("--workdir", type=folder_path, default=RESULTS, help="where the two files are written")
    options = parser.parse_args(argv)
    path = options.workdir / "slow_tests.json"
    result = jsonfiles.read_json(path) if path.exists() else {"files": [], "missing": []}
    run_missing(collect_tests(options.tests.split(",")), result, options.jobs, options.workdir, argv)
    failures = [name for row in result["files"] for name in row["failures"]]
    print("\n".join([*failures, describe_totals(result["files"])]))
    emit_json(result, options.json)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
