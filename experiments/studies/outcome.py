"""The frame of a study: command line, parts that survive a stop, numbers beside known ones, and the files of a result.

A study measures, draws and describes; this file does the rest, so that `scalelab study` can list what each one found
and docs/gallery.md can show it.
"""

import contextlib
import json
import pathlib
import re
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from scalelab.__main__ import guarded
from scalelab.cli.parser import Parser, folder_path, print_status
from scalelab.errors import BadInput
from scalelab.experiments.shared import RESULTS, command_line, markdown_table, publish_result, result_header
from scalelab.experiments.studies.check_kinds import chosen_after, explain_verdicts, kind_of_check, verdict_of
from scalelab.experiments.studies.limits import NO_END, judge_checks
from scalelab.record import records
from scalelab.report.figures.style import write_figure
from scalelab.study import Kind, describe_change, open_study, write_once
from scalelab.sweep.executors import worker

SPENT_FILE = "spent.json"
KIND = Kind("study", "study.json", earlier=(SPENT_FILE,))
CHECK_COLUMNS = ("number", "known", "kind", "source", "ours", "allowed", "inside")


def run_study(
    name: str,
    doc: str | None,
    argv: Sequence[str],
    measure: Callable[[pathlib.Path, bool], dict[str, Any]],
    draw: Callable[[Mapping[str, Any]], Figure],
    describe: Callable[[Mapping[str, Any]], list[str]],
) -> int:
    """Run a study and write NAME.json, NAME.md and NAME.png; exit codes as for commands.

    `measure(folder, quick)` returns a result with the entries `finding` (one sentence), `checks` (rows of
    `compare_with`) and `limits` (what its setting cannot tell).
    `describe(result)` returns the lines of the page below the table of checks.
    """

    def work(argv: Sequence[str]) -> int:
        options = _study_options(name, doc).parse_args(list(argv))
        folder = options.workdir or pathlib.Path("runs") / name
        place = options.workdir or (folder if options.quick else RESULTS)
        with open_study(folder, KIND, {"study": name, "quick": options.quick}, report=print_status):
            with count_seconds(folder):
                measured = measure(folder, options.quick)
            measured |= {"checks": judge_checks(name, measured)}
            result = result_header(f"studies.{name}", argv) | read_seconds(folder) | measured
            page = make_page(name, doc or name, result, describe(result))
            place.mkdir(parents=True, exist_ok=True)
            write_figure(str(place / f"{name}.png"), draw(result), [])
            print_status(f"{place}/{name}.md, .json and .png")
            return publish_result(place, name, result, page, options.json)

    return guarded(name, work, argv)


def _study_options(name: str, doc: str | None) -> Parser:
    parser = command_line(name, doc)
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="where parts and files go; again to resume")
    parser.add_argument("--quick", action="store_true", help="a smaller setting: at most 3 minutes on 2 cores")
    return parser


@contextlib.contextmanager
def count_seconds(folder: pathlib.Path) -> Iterator[None]:
    """Add the wall and CPU seconds of the body, and of processes that ended in it, to those of earlier calls."""
    wall, cpu = time.monotonic(), _cpu_seconds()
    try:
        yield
    finally:
        path = folder / SPENT_FILE
        before = records.read_json(path) if path.exists() else {"wall_s": 0.0, "cpu_s": 0.0}
        spent = {"wall_s": time.monotonic() - wall, "cpu_s": _cpu_seconds() - cpu}
        records.write_json(path, {key: round(before[key] + spent[key], 1) for key in spent})


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def read_seconds(folder: pathlib.Path) -> dict[str, float]:
    """`wall_s` and `cpu_s` of all calls so far, with the CPU seconds of the workers that trained packs of trials."""
    spent = records.read_json(folder / SPENT_FILE)
    lines = (line for path in folder.rglob(f"packs/*/{worker.SPENT_FILE}") for line in records.read_json_lines(path))
    return spent | {"cpu_s": round(spent["cpu_s"] + sum(line["cpu_s"] for line in lines), 1)}


def measure_once(
    folder: pathlib.Path,
    part: str,
    settings: Mapping[str, Any],
    compute: Callable[[], Any],
    before: Iterable[pathlib.Path] = (),
) -> Any:
    """`compute()`, a value of JSON, as a fact of the study in `folder`. BadInput if its settings were others.

    `before`: the runs that a prediction is about.
    """
    path, wanted = folder / "parts" / f"{part}.json", json.loads(json.dumps(settings))
    fact = write_once(path, lambda: {"settings": wanted, "value": compute()}, {"settings": {}}, before)
    if change := describe_change(fact["settings"], wanted):
        raise BadInput(f"{path} was computed with {change}: name another --workdir")
    if "value" not in fact:
        raise BadInput(f"{path} has no value; was it edited?")
    return fact["value"]


def compare_with(
    known: float, source: str, name: str, measured: float, low: float, high: float, unit: str = ""
) -> dict[str, Any]:
    """A row of checks: a published or closed-form value, ours, and whether ours lies within [low, high].

    Limits come from the source's interval and ours, never from what came out; `limits.py` holds those that follow from
    errors of ours. A page says of limits that would take half or twice the value, or the other sign, that they can't
    say no.
    """
    return {"name": name, "known": known, "source": source, "measured": measured, "unit": unit,
            "low": low, "high": high, "inside": bool(low <= measured <= high)}  # fmt: skip


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds and its standard error."""
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5


def make_page(name: str, doc: str, result: Mapping[str, Any], body: Sequence[str]) -> str:
    """The page of a result: what was found, the figure, the checks, the study's own lines, and its limits."""
    title, _, _ = doc.partition("\n")
    cost = f"{result['cpu_s']:.0f} CPU seconds ({result['wall_s']:.0f} s of wall time)"
    return "\n".join(
        [
            f"# {title.rstrip('.')}",
            "",
            f"`{result['command']}`, {result['date']}, {cost}, {result['machine']}",
            "",
            result["finding"],
            "",
            f"![{title.partition(':')[0]}]({name}.png)",
            "",
            *markdown_table(CHECK_COLUMNS, map(check_cells, result["checks"])),
            "",
            *body,
            "",
            *(line for text in explain_verdicts(result) for line in (text, "")),
            *(line for text in chosen_after(result) for line in (f"Chosen after runs were seen: {text}", "")),
            f"What this cannot tell: {result['limits']}",
            "",
        ]
    )


def replace_checks(page: str, result: Mapping[str, Any]) -> str:
    """A page with the checks of `result` in the place of its own: the table, and the sentences about it."""
    lines = [line for line in page.split("\n") if not line.startswith(("Not testable here: ", "Says no: "))]
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {' | '.join(CHECK_COLUMNS)}"))
    end = next(i for i in range(start, len(lines)) if not lines[i])
    lines[start:end] = markdown_table(CHECK_COLUMNS, map(check_cells, result["checks"]))
    last = next(i for i, line in enumerate(lines) if line.startswith(("Chosen after", "What this cannot tell")))
    lines[last:last] = [line for text in explain_verdicts(result) for line in (text, "")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def check_cells(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row of checks."""
    known, measured = (f"{row[key]:.4g}{row['unit'] and ' '}{row['unit']}" for key in ("known", "measured"))
    return [row["name"], known, kind_of_check(row), row["source"], measured, _allowed(row), verdict_of(row)]


def _allowed(row: Mapping[str, Any]) -> str:
    if row["high"] >= NO_END:
        return f"from {row['low']:.4g}"
    return f"up to {row['high']:.4g}" if row["low"] <= -NO_END else f"{row['low']:.4g} to {row['high']:.4g}"
