"""Run the cases of the contract through `scalelab train` and `scalelab diagnose`, and score the answers.

    python -m checks.diagnosis.contract [--half=open] [--only="NAME;…"] [--line=L] [--sizes=2] [--harm]
        [--without-live|--as-typed] [--workdir=DIR]

Each result is kept in --workdir, so the same command goes on with what is missing. --harm also trains each fault, and
the run without it, over two seeds. `diagnose` is asked with --live; --as-typed: without options; --without-live: with
--fast, by the folder alone, without what only the program shows. A whole half takes an hour of CPU; it writes
contract_HALF.json and .md into checks/results. Read checks/diagnosis/contract.md before a sealed half. Exit 1 where the
goals are missed, 2 bad input.

    python -m checks.diagnosis.contract --only="rows twice in a batch"
"""

import importlib
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from checks.diagnosis.contract.case import HEALTHY, LINES, Case
from checks.diagnosis.contract.score import judge_case, measure_harm
from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import BadInput, WorkFailed, nearest_hint
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.study import write_once

SETS = ("", "third/", "fourth/", "fifth/")
HALVES = (*(f"{name}{half}" for name in SETS for half in ("open", "sealed")), "experts")
ASKED = {"--live": "", "": "_typed", "--fast": "_folder"}  # in the names of what was judged so
HOW = {"--live": "", "": ", judged by `diagnose RUN`", "--fast": ", judged by the folder alone"}
NAMED_SHARE, ALARM_SHARE = 32 / 40, 3 / 60
FAULT_COLUMNS = ("fault", "line", "size", "loss", "harm", "first finding", "place", "wrong knobs")


def main(argv: Sequence[str]) -> int:
    """Run what is missing and print the table. Exit code: see above."""
    return guarded("contract", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("diagnosis.contract", __doc__)
    parser.add_argument("--half", choices=HALVES, default="open", metavar="HALF", help=f"cases: {', '.join(HALVES)}")
    parser.add_argument("--only", default="", help="cases by name, separated by semicolons")
    parser.add_argument("--line", choices=(*LINES, HEALTHY), help="cases of this line alone")
    parser.add_argument("--sizes", type=int, choices=(1, 2), default=2, help="1: the smaller size alone")
    parser.add_argument("--harm", action="store_true", help="also measure what each fault costs")
    parser.add_argument("--without-live", action="store_true", help="by the folder alone: not asking the program")
    parser.add_argument("--as-typed", action="store_true", help="by `diagnose RUN`, which asks small programs")
    parser.add_argument("--workdir", type=folder_path, default=pathlib.Path("runs/contract"), help="for the results")
    options = parser.parse_args(argv)
    cases = load_cases(options.half)
    chosen = _chosen(options, cases)
    if options.without_live and options.as_typed:
        raise BadInput("--without-live and --as-typed: choose one")
    asked = "--fast" if options.without_live else "" if options.as_typed else "--live"
    chosen = [case._replace(asked=asked) for case in chosen]
    jobs = [(case, number) for case in chosen for number in range(min(options.sizes, len(case.sizes)))]
    rows = []
    for done, (case, number) in enumerate(jobs, 1):
        rows.append(_row(options, case, number))
        print(f"{done}/{len(jobs)} {_describe(rows[-1])}", file=sys.stderr, flush=True)
    head = result_header("diagnosis.contract", argv) | {"half": options.half, "asked": asked}
    result = head | count_rows(rows) | {"rows": rows}
    if len(chosen) == len(cases):
        name = f"contract_{options.half.replace('/', '_')}{ASKED[asked]}"
        write_result(RESULTS, name, result, format_page(result))
    if options.json != "-":
        print(format_page(result))
    emit_json(result, options.json)
    return 0 if passed(result) else 1


def load_cases(half: str) -> dict[str, Case]:
    """The cases of a half by name; the other half is not opened."""
    cases: dict[str, Case] = importlib.import_module(f"{__package__}.{half.replace('/', '.')}.cases").CASES
    return cases


def _chosen(options: Any, cases: Mapping[str, Case]) -> list[Case]:
    asked = [name.strip() for name in options.only.split(";") if name.strip()]
    for name in asked:
        if name not in cases:
            raise BadInput(f"--only: no case {name!r} in {options.half}{nearest_hint(name, cases)}")
    return [case for name, case in cases.items() if (not asked or name in asked) and options.line in (None, case.line)]


def _row(options: Any, case: Case, number: int) -> dict[str, Any]:
    """The result of a case at a size, read if it was kept. A case whose commands fail is a row with its reason."""
    name = f"{'-'.join(case.name.replace(',', '').split())}-{number + 1}{ASKED[case.asked]}"
    place = options.workdir.absolute() / options.half / name

    def run(job: Any) -> dict[str, Any]:
        begin = time.time()
        try:
            result = job(case, options.half, number, place)
        except WorkFailed as error:
            result = {"line": case.line, "failed": str(error)}
        return result | {"seconds": round(time.time() - begin, 1)}

    head = {"name": case.name, "size": number + 1}
    row: dict[str, Any] = head | write_once(place.with_name(place.name + ".json"), lambda: run(judge_case))
    if options.harm and case.line != HEALTHY:
        row |= write_once(place.with_name(place.name + ".harm.json"), lambda: {"seconds": 0} | run(measure_harm))
    return row


def count_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The counts that the goals are about; a case counts at each of its sizes."""
    faults = [row for row in rows if row["line"] != HEALTHY and "failed" not in row]
    healthy = [row for row in rows if row["line"] == HEALTHY and "failed" not in row]
    return {
        "faults": len(faults),
        "first": sum(row["place"] == 1 for row in faults),
        "among_three": sum(1 <= row["place"] <= 3 for row in faults),
        "wrong_knobs": sum(bool(row["wrong_knobs"]) for row in faults),
        "silent": sum(not row["findings"] for row in faults),
        "healthy_runs": len(healthy),
        "alarms": sum(bool(row["findings"]) for row in healthy),
        "failed": sum("failed" in row for row in rows),
    }


def passed(result: Mapping[str, Any]) -> bool:
    """Whether the goals are met: 32 of 40 first, no wrong knob, 3 alarms in 60."""
    enough = result["first"] >= NAMED_SHARE * result["faults"]
    quiet = result["alarms"] <= ALARM_SHARE * max(result["healthy_runs"], 60)
    return bool(enough and quiet and not result["wrong_knobs"] and not result["failed"])


def format_page(result: Mapping[str, Any]) -> str:
    """The result in Markdown."""
    faults = [row for row in result["rows"] if row["line"] != HEALTHY]
    healthy = [row for row in result["rows"] if row["line"] == HEALTHY]
    counts = (
        f"{result['faults']} faults: named first {result['first']}, among three {result['among_three']}, nothing said "
        f"{result['silent']}, wrong knob {result['wrong_knobs']}; {result['healthy_runs']} healthy runs, alarms "
        f"{result['alarms']}; failed {result['failed']}."
    )
    lines = [
        f"# Cases of the contract, {result['half']} half" + HOW[result["asked"]],
        "",
        f"`{result['command']}`, {result['date']}",
        "",
        counts,
    ]
    lines += ["", *markdown_table(FAULT_COLUMNS, map(_fault_cells, faults)), "", "## Healthy runs", ""]
    lines += markdown_table(("run", "loss", "findings", "fair question"), map(_healthy_cells, healthy))
    return "\n".join([*lines, ""])


def _first(row: Mapping[str, Any]) -> str:
    if "failed" in row:
        return f"failed: {row['failed']}".replace("|", "/")
    return row["findings"][0]["cause"] if row["findings"] else "none"


def _fault_cells(row: Mapping[str, Any]) -> list[str]:
    harm = row.get("harm")
    cells = [
        row["name"],
        row["line"],
        str(row["size"]),
        _loss(row),
        "-" if harm is None else f"{harm:+.3f}",
        _first(row),
    ]
    return [*cells, str(row.get("place") or "-"), ", ".join(row.get("wrong_knobs", ())) or "-"]


def _healthy_cells(row: Mapping[str, Any]) -> list[str]:
    causes = ", ".join(finding["cause"] for finding in row.get("findings", ())) or _first(row)
    return [row["name"], _loss(row), causes, row.get("question") or "-"]


def _loss(row: Mapping[str, Any]) -> str:
    return f"{row['val_loss']:.3f}" if row.get("val_loss") is not None else "-"


def _describe(row: Mapping[str, Any]) -> str:
    place = "" if row["line"] == HEALTHY else f", place {row.get('place', '-')}"
    return f"{row['name']}, size {row['size']}: {_first(row)}{place} ({row['seconds']} s)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
