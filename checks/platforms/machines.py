"""Run the tests under several BLAS kernels and instruction sets, and measure what is left of each tolerance.

    python -m checks.platforms.machines [--runs=SkylakeX,Haswell:AVX2,Sandybridge:AVX] [--tests=tests/optim,tests/laws]
    [--jobs=2]

A run is CORE[:ISA]: OPENBLAS_CORETYPE (the kernels behind numpy's, scipy's and jax's LAPACK), and the instruction set
that XLA compiles for (--xla_cpu_max_isa; left out: the machine's own). XLA's library of products and sums (YNNPACK)
goes by the processor alone, so that it takes part only where no ISA is given. AVX has no fused multiply-add.

A comparison is one of rounding if its tolerance is below 1e-5 of the expected value (in an assert a < b: b itself is
below 1e-5), or below 2^-7, bf16's spacing, and the runs move what is seen; but not where the expected number is printed
and the tolerance covers its last digit. It uses seen / allowed of its room, the largest of all runs. Everything else is
a fact (a count, a published value, an order, a clock): it uses what the runs move it by, over what the run farthest
from its bound leaves to that. More than a third of the room needs an argument in tolerances.json.

Writes `checks/results/machines.json` and `.md`, or into --workdir. The first run takes as long as `make test-all`;
later ones leave out tests that compared no floating-point numbers in the first. The same command again runs what is
missing, what failed, and what stands in test files that changed since. Exit 1 where a test fails, or where over a
third of a room is used without an argument.

    python -m checks.platforms.machines --runs=Haswell:AVX2
"""

import pathlib
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from checks.platforms.machine_runs import Run, run_tests
from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import BadInput
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.record import jsonfiles

DEFAULT_RUNS = "SkylakeX,Haswell:AVX2,Sandybridge:AVX"  # OpenBLAS takes Haswell's kernels for Zen, too
CLOSE_SHARE = 1 / 3  # a room is listed if a larger share of it is used
ROUNDING = 2**-7  # the spacing of bf16, the coarsest format that is computed in
SURELY_ROUNDING = 1e-5  # nobody states a fact to more digits
MOVES = 1e-3  # rounding errors are others altogether on other kernels; facts change in their last digits
_ARGUMENTS = pathlib.Path(__file__).parent / "tolerances.json"  # "file::test" -> why its tolerance is as it is


def parse_runs(text: str) -> list[Run]:
    """Parse "CORE[:ISA],…" into runs, ISA "" where left out; BadInput if a core is missing."""
    runs = [Run(core, isa) for core, _, isa in (part.partition(":") for part in text.split(","))]
    if not all(run.core for run in runs):
        raise BadInput(f"--runs={text!r}: each run is CORE or CORE:ISA, as in {DEFAULT_RUNS}")
    return runs


def is_rounding(tolerance: float, shares: Sequence[float | None]) -> bool:
    """Whether a tolerance, relative to the expected value, is for rounding errors; see the head of this file."""
    values = [share for share in shares if share is not None]
    moves = max(values) - min(values) > MOVES
    return tolerance < SURELY_ROUNDING or (tolerance < ROUNDING and moves)


def room_used(shares: Sequence[float | None], rounding: bool) -> float:
    """The share of its room that a comparison uses, from the shares of its tolerance in each run."""
    values = [share for share in shares if share is not None]
    if rounding:
        return max(values)
    moved, left = max(values) - min(values), 1 - min(values)
    return moved / left if moved else 0.0


def measured_rooms(runs: Sequence[Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row for each line of a test that compares: its shares in each run, and which part of its room they use.

    Of a line that several parametrized tests share, the one that uses most.
    """
    shares: dict[tuple[str, str, str, bool], list[float | None]] = {}
    tolerances: dict[tuple[str, str, str, bool], float] = {}
    for i, tests in enumerate(runs):
        for test in tests:
            for comparison in test["comparisons"]:
                place = (test["test"], comparison["line"], comparison["kind"], comparison["printed"])
                parts = shares.setdefault(place, [None] * len(runs))
                parts[i] = max(parts[i] or 0.0, comparison["used"])
                tolerance = comparison["allowed"] / (comparison["size"] or 1.0)
                tolerances[place] = min(tolerances.get(place, tolerance), tolerance)
    rows: dict[tuple[str, str, str, bool], dict[str, Any]] = {}
    for (test, line, kind, printed), parts in shares.items():
        rounding = not printed and is_rounding(tolerances[test, line, kind, printed], parts)
        row = {"test": test.partition("[")[0], "line": line, "kind": kind, "rounding": rounding, "shares": parts}
        row |= {"tolerance": tolerances[test, line, kind, printed], "used": room_used(parts, rounding)}
        key = (row["test"], line, kind, rounding)
        if key not in rows or rows[key]["used"] < row["used"]:
            rows[key] = row
    return [row for _, row in sorted(rows.items())]


def summarize_folders(rows: Sequence[Mapping[str, Any]], n_runs: int) -> list[dict[str, Any]]:
    """For each folder of tests: how many comparisons of rounding, the largest share in each run, where; and facts."""
    folders: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        folders.setdefault("/".join(pathlib.PurePath(row["test"].partition("::")[0]).parts[1:2]), []).append(row)
    summary = []
    for folder, members in sorted(folders.items()):
        rounding, facts = ([row for row in members if row["rounding"] == kind] for kind in (True, False))
        largest = [max((row["shares"][i] or 0.0 for row in rounding), default=0.0) for i in range(n_runs)]
        where = max(rounding, key=lambda row: row["used"])["line"] if rounding else ""
        moved = max((row["used"] for row in facts), default=0.0)
        summary.append(
            {"folder": folder, "rounding": len(rounding), "largest": largest, "where": where, "facts": len(facts)}
            | {"moved": moved}
        )
    return summary


def format_page(result: Mapping[str, Any]) -> str:
    """Format the result in Markdown."""
    runs, rows = result["runs"], result["close"]
    lines = ["# The tests on other machines' kernels", "", f"`{result['command']}`, {result['date']}:"]
    lines += [result["machine"] + f"; its own instructions: {result['instructions']}", ""]
    columns = ("run", "LAPACK's kernels", "passed", "failed", "skipped", "left out", "s of tests")
    lines += markdown_table(columns, map(_run_cells, runs))
    lines += [
        "",
        "Left out: tests that compared no floating-point numbers in the first run.",
        *(f"- {run['name']}: {name} failed" for run in runs for name in run["failures"]),
        *(f"- {run['name']}: {name} failed, and passed when it was run again" for run in runs for name in run["again"]),
        "",
        "## The largest seen over allowed",
        "",
        "A comparison of rounding uses seen / allowed. A fact (a count, a published value, an order, a clock) uses "
        "what the runs",
        "move it by, over what is left to its bound.",
        "",
    ]
    columns = ("tests", "roundings", *(run["name"] for run in runs), "the largest", "facts", "moved")
    lines += markdown_table(columns, map(_folder_cells, result["folders"]))
    lines += ["", f"## More than a third: {len(rows)}", ""]
    columns = ("comparison", "kind", *(run["name"] for run in runs), "used", "why it is enough")
    lines += markdown_table(columns, map(_cells, rows)) if rows else ["None."]
    return "\n".join([*lines, ""])


def _run_cells(run: Mapping[str, Any]) -> list[str]:
    return [str(run[key]) for key in ("name", "kernels", "passed", "failed", "skipped", "left_out", "seconds")]


def _folder_cells(row: Mapping[str, Any]) -> list[str]:
    shares = [f"{share:.3f}" for share in row["largest"]]
    return [row["folder"], str(row["rounding"]), *shares, row["where"], str(row["facts"]), f"{row['moved']:.3f}"]


def _cells(row: Mapping[str, Any]) -> list[str]:
    shares = ["-" if share is None else f"{share:.3f}" for share in row["shares"]]
    kind = f"{row['kind']}, {'rounding' if row['rounding'] else 'fact'}"
    return [f"{row['test'].rpartition('::')[2]} ({row['line']})", kind, *shares, f"{row['used']:.3f}", row["why"]]


def describe_instructions() -> str:
    """The widest vector instructions of this processor: AVX-512, AVX2, AVX or none of them."""
    path = pathlib.Path("/proc/cpuinfo")
    flags = set(path.read_text().split()) if path.exists() else set()
    names = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX"}
    return next((name for flag, name in names.items() if flag in flags), "no AVX")


def main(argv: Sequence[str]) -> int:
    """Run the tests, write the result, print the counts. Exit code: 0 all is well, 1 see above, 2 bad input."""
    return guarded("machines", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("platforms.machines", __doc__)
    parser.add_argument("--runs", default=DEFAULT_RUNS, help=f"CORE[:ISA],… (default: {DEFAULT_RUNS})")
    parser.add_argument("--tests", default="tests", help="files and folders, separated by commas (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="pytest's workers")
    parser.add_argument("--workdir", type=folder_path, default=RESULTS, help="where the two files are written")
    options = parser.parse_args(argv)
    parts, tests = options.workdir / "machines.parts", options.tests.split(",")
    runs, results, without_floats = parse_runs(options.runs), [], set[str]()
    for i, run in enumerate(runs):
        counts, lines = run_tests(run, tests, options.jobs, parts / run.name, without_floats)
        results.append((counts, lines))
        if i == 0:
            without_floats = {line["test"] for line in lines if not line["floats"] and line["outcome"] == "passed"}
    rows = measured_rooms([lines for _, lines in results])
    why = jsonfiles.read_json(_ARGUMENTS)
    close = [row | {"why": why.get(row["test"], "")} for row in rows if row["used"] > CLOSE_SHARE]
    result = result_header("platforms.machines", argv) | {"instructions": describe_instructions()}
    result |= {"runs": [counts for counts, _ in results], "folders": summarize_folders(rows, len(runs)), "close": close}
    write_result(options.workdir, "machines", result, format_page(result))
    unargued, failed = sum(not row["why"] for row in close), sum(counts["failed"] for counts, _ in results)
    counts = "; ".join(f"{run['name']} {run['passed']} passed, {run['failed']} failed" for run, _ in results)
    print(f"{counts}; {len(rows)} comparisons, {len(close)} use over a third, {unargued} of them without an argument")
    emit_json(result, options.json)
    if failed or unargued:
        return 1
    shutil.rmtree(parts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
