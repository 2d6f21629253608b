"""Run the tests under several BLAS kernels and instruction sets, and list tolerances that are nearly used up.

    python -m experiments.machines [--runs=Haswell:AVX2,SkylakeX,Sandybridge] [--tests=tests/optim,tests/laws]
    [--jobs=2]

A run is CORE[:ISA]: OPENBLAS_CORETYPE (the kernels behind numpy's, scipy's and jax's LAPACK) and XLA's
--xla_cpu_max_isa (the machine's own where left out). Writes `results/machines.json` and `.md` beside this file, or into
--workdir: the runs, what failed, and each comparison that used over a third of its tolerance in any run. Three times as
long as `make test`; after an interruption the same command, on the same code, goes on with the runs that are missing.
Exit 1 where a test fails.

    scalelab study machines --runs=Haswell:AVX2
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scalelab import git, jsonfiles
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import BadInput
from scalelab.experiments.shared import RESULTS, command_line, markdown_table, result_header, write_result

DEFAULT_RUNS = "Haswell:AVX2,SkylakeX,Sandybridge"  # OpenBLAS takes Haswell's kernels for Zen, too
CLOSE_SHARE = 1 / 3  # a tolerance is listed if a larger share of it is used
SAME_SPREAD = 1e-3  # shares that differ by less between runs don't depend on the machine
_ROOT = pathlib.Path(__file__).resolve().parents[1]
_ARGUMENTS = pathlib.Path(__file__).parent / "tolerances.json"  # "file::test" -> why its tolerance is as it is

# The kernels that OpenBLAS really uses, asked of numpy's and scipy's libraries: they don't refuse unknown names.
_KERNELS = """
import ctypes, re, numpy.linalg, scipy.linalg
names = set()
for path in sorted(set(re.findall(r"/\\S*openblas\\S*", open("/proc/self/maps").read()))):
    for symbol in ("scipy_openblas_get_corename64_", "scipy_openblas_get_corename", "openblas_get_corename"):
        get = getattr(ctypes.CDLL(path), symbol, None)
        if get:
            get.restype = ctypes.c_char_p
            names.add(get().decode())
            break
print(" ".join(sorted(names)))
"""


def parse_runs(text: str) -> list[tuple[str, str]]:
    """Parse "CORE[:ISA],…" into [(core, ISA or "")]; BadInput if a core is missing."""
    runs = [(core, isa) for core, _, isa in (part.partition(":") for part in text.split(","))]
    if not all(core for core, _ in runs):
        raise BadInput(f"--runs={text!r}: each run is CORE or CORE:ISA, as in {DEFAULT_RUNS}")
    return runs


def run_environment(core: str, isa: str, folder: pathlib.Path) -> dict[str, str]:
    """The environment of a run. Bytecode goes to its own folder: asserts are rewritten differently from `make test`."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {f'--xla_cpu_max_isa={isa}' if isa else ''}".strip()
    settings = {"OPENBLAS_CORETYPE": core, "XLA_FLAGS": flags, "SCALELAB_TOLERANCES": str(folder)}
    return {**os.environ, **settings, "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "JAX_PLATFORMS": "cpu"}


def run_tests(core: str, isa: str, tests: Sequence[str], jobs: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run the tests once: (counts and failures, the comparisons made)."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        env = run_environment(core, isa, folder)
        kernels = subprocess.run(
            [sys.executable, "-c", _KERNELS], env=env, capture_output=True, text=True
        ).stdout.strip()
        options = ["-p", "tests.tolerances", "-o", "enable_assertion_pass_hook=true", "-p", "no:cacheprovider"]
        options += ["-n", str(jobs), f"--junitxml={folder / 'tests.xml'}", "--no-header", "--tb=line"]
        subprocess.run([sys.executable, "-m", "pytest", *options, *tests], env=env, cwd=_ROOT, stdout=sys.stderr)
        if not (folder / "tests.xml").exists():
            raise BadInput(f"pytest did not run under OPENBLAS_CORETYPE={core}: see its last lines above")
        counts = _counts(folder / "tests.xml")
        lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return {"core": core, "isa": isa, "kernels": kernels} | counts, [json.loads(line) for line in lines]


def run_or_read(
    core: str, isa: str, tests: Sequence[str], jobs: int, folder: pathlib.Path
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What `run_tests` gives, kept in `folder`: it is read from there if the same code ran the same tests before."""
    path = folder / f"{core}-{isa or 'own'}.json"
    asked = json.loads(json.dumps({"code": git.code_state()["scalelab"], "tests": tests}))
    kept = jsonfiles.read_json(path) if path.exists() else {}
    if kept.get("asked") == asked:
        print(f"{core}:{isa}: read from {path}", file=sys.stderr, flush=True)
    else:
        run, comparisons = run_tests(core, isa, tests, jobs)
        kept = {"asked": asked, "run": run, "comparisons": comparisons}
        jsonfiles.write_json(path, kept)
    return kept["run"], kept["comparisons"]


def _counts(path: pathlib.Path) -> dict[str, Any]:
    suite = xml.parse(path).getroot().find("testsuite")
    assert suite is not None
    values = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    failed = values["failures"] + values["errors"]
    names = [
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return {
        "passed": values["tests"] - failed - values["skipped"],
        "failed": failed,
        "skipped": values["skipped"],
        "seconds": float(suite.get("time", 0)),
        "failures": names,
    }


def close_tolerances(comparisons: Sequence[Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Comparisons (lines of tests) with the share of tolerance used in each run, if one is over CLOSE_SHARE."""
    largest: dict[tuple[str, str, str], list[float | None]] = {}
    for i, rows in enumerate(comparisons):
        for row in rows:
            key = (row["test"].partition("[")[0], row["line"], row["kind"])
            parts = largest.setdefault(key, [None] * len(comparisons))
            parts[i] = max(parts[i] or 0.0, row["used"])
    return [
        {"test": test, "line": line, "kind": kind, "used": parts, "varies": _varies(parts)}
        for (test, line, kind), parts in sorted(largest.items())
        if max(part or 0.0 for part in parts) > CLOSE_SHARE
    ]


def _varies(parts: Sequence[float | None]) -> bool:
    values = [part for part in parts if part is not None]
    return max(values) - min(values) > SAME_SPREAD


def format_page(result: Mapping[str, Any]) -> str:
    """Format the result in Markdown."""
    runs, rows = result["runs"], result["tolerances"]
    varying, fixed = [r for r in rows if r["varies"]], [r for r in rows if not r["varies"]]
    titles = [f"{run['core']}, {run['isa'] or 'own ISA'}" for run in runs]
    lines = [
        "# The tests on other machines' kernels",
        "",
        f"`{result['command']}`, {result['date']}: {result['machine']}",
        "",
    ]
    columns = ("OPENBLAS_CORETYPE", "kernels taken", "max ISA", "passed", "failed", "skipped", "s")
    lines += markdown_table(columns, ([str(cell) for cell in _run_cells(run)] for run in runs))
    lines += ["", *(f"- {run['core']}: {name} failed" for run in runs for name in run["failures"])]
    lines += [f"## Used more than a third of a tolerance, and not the same on every run: {len(varying)}", ""]
    lines += markdown_table(("comparison", "kind", *titles, "why it is enough"), map(_cells, varying))
    lines += ["", f"## Used more than a third, the same on every run: {len(fixed)}", ""]
    lines += [
        "No kernel moves these: distances between fixed numbers (a value and its printed digits), or rounding "
        "outside BLAS.",
        "",
    ]
    lines += markdown_table(("comparison", "kind", *titles, "why it is enough"), map(_cells, fixed))
    return "\n".join([*lines, ""])


def _run_cells(run: Mapping[str, Any]) -> tuple[Any, ...]:
    isa = run["isa"] or "the machine's"
    return run["core"], run["kernels"], isa, run["passed"], run["failed"], run["skipped"], round(run["seconds"])


def _cells(row: Mapping[str, Any]) -> list[str]:
    used = ["-" if part is None else f"{part:.3f}" for part in row["used"]]
    return [f"{row['test'].rpartition('::')[2]} ({row['line']})", row["kind"], *used, row["why"]]


def main(argv: Sequence[str]) -> int:
    """Run the tests, write the result, print the counts. Exit code: 0 all passed, 1 a test failed, 2 bad input."""
    return guarded("machines", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("machines", __doc__)
    parser.add_argument("--runs", default=DEFAULT_RUNS, help=f"CORE[:ISA],… (default: {DEFAULT_RUNS})")
    parser.add_argument("--tests", default="tests", help="files and folders, separated by commas (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="pytest's workers")
    parser.add_argument("--workdir", type=folder_path, default=RESULTS, help="where the two files are written")
    options = parser.parse_args(argv)
    parts = options.workdir / "machines.parts"
    runs = parse_runs(options.runs)
    results = [run_or_read(*run, options.tests.split(","), options.jobs, parts) for run in runs]
    why = json.loads(_ARGUMENTS.read_text())
    rows = [row | {"why": why.get(row["test"], "")} for row in close_tolerances([rows for _, rows in results])]
    result = result_header("machines", argv) | {"runs": [run for run, _ in results], "tolerances": rows}
    write_result(options.workdir, "machines", result, format_page(result))
    shutil.rmtree(parts)
    failed = sum(run["failed"] for run, _ in results)
    unargued = sum(not row["why"] and row["varies"] for row in rows)
    counts = "; ".join(
        f"{run['core']}:{run['isa']} {run['passed']} passed, {run['failed']} failed" for run, _ in results
    )
    print(f"{counts}; {len(rows)} tolerances used by over a third, {unargued} that vary and are not argued")
    emit_json(result, options.json)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
