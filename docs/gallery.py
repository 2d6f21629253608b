"""The page docs/gallery.md: what each study of a phenomenon found, its figure and its numbers."""

import pathlib
from collections.abc import Mapping
from typing import Any

from scalelab.api.setup import list_studies
from scalelab.experiments import fingerprint
from scalelab.experiments.shared import RESULTS, markdown_table
from scalelab.experiments.studies.check_kinds import explain_verdicts
from scalelab.experiments.studies.outcome import CHECK_COLUMNS, check_cells
from scalelab.record import records

HEAD = (
    "# Gallery of studies",
    "",
    "Each study shows one phenomenon of training, and compares its numbers with published values or closed forms. "
    "`scalelab study` lists them; all take `--quick` (at most 3 minutes on 2 cores) and `--workdir=DIR`, and an "
    "interrupted one resumes; `--quick` and the whole study need folders of their own. The pages behind the "
    "names say what a setting cannot tell. Limits follow from the source's interval and ours; *can't say no*: half or "
    "twice the value would pass them as well; *not testable*: two cores can't tell, and its section says "
    "why. *(stale)*: the study's own code, or the golden step, changed since it ran; "
    "`scalelab study --stale` says what. [Contradictions](contradictions.md) sets results side by side that seem to "
    "disagree.",
    "",
)


def gallery_page() -> str:
    """The page: a table of all checks, then figure, sentence and command of each study."""
    results = committed_results()
    rows = [cells for name, result in results.items() for cells in _rows(name, result)]
    columns = ("study", "CPU s", *CHECK_COLUMNS)
    parts = [part for name, result in results.items() for part in _section(name, result)]
    return "\n".join([*HEAD, *markdown_table(columns, rows), "", *parts])


def committed_results() -> dict[str, Mapping[str, Any]]:
    """{name: result} of the studies whose result names a finding."""
    paths = {name: RESULTS / f"{name}.json" for name in list_studies()}
    results = {name: records.read_json(path) for name, path in paths.items() if path.exists()}
    return {name: each for name, each in results.items() if isinstance(each, dict) and "finding" in each}


def _rows(name: str, result: Mapping[str, Any]) -> list[list[str]]:
    stale = fingerprint.stale_reasons(fingerprint.read_fingerprint(RESULTS / f"{name}.json"))
    link = f"[{name}](../experiments/results/{name}.md){' (stale)' if stale else ''}"
    head = [[link, f"{result['cpu_s']:.0f}"], *([["", ""]] * len(result["checks"]))]
    return [start + check_cells(row) for start, row in zip(head, result["checks"], strict=False)]


def _section(name: str, result: Mapping[str, Any]) -> list[str]:
    return [
        f"## {name}",
        "",
        result["finding"],
        "",
        *(line for text in explain_verdicts(result) for line in (text, "")),
        f"![{name}](../experiments/results/{name}.png)",
        "",
        f"    scalelab study {name} --workdir={pathlib.PurePosixPath('runs') / name}",
        "",
    ]
