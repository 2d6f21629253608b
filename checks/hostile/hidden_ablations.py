"""Score `scalelab ablate TABLE` on kinds of studies that were written without its rules being read.

    python -m checks.hostile.hidden_ablations [--studies=20] [--only="null; blocks by width"] [--workdir=DIR]

Fourteen kinds; the true m is known at the largest rung, where the verdict is given, and at four times its budget. Each
study is a CSV as users have them, judged by `api.judge_table`. Written into `checks/results` when all kinds are run.

    python -m checks.hostile.hidden_ablations --studies=1 --workdir=runs/hidden
"""

import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from checks.hostile.hidden_studies import BEYOND, KINDS, draw_study, write_table
from checks.shared import RESULTS, command_line, result_header
from scalelab import api
from scalelab.__main__ import guarded
from scalelab.cli.parser import folder_path, print_status
from scalelab.errors import BadInput, nearest_hint
from scalelab.experiments.shared import markdown_table, publish_result

WORTH = 1.02
VERDICTS = ("adopt", "reject", "no difference", "undecided")
COLUMNS = (
    *("kind", "place", "studies", *VERDICTS, "right", "wrong", "studies wrong", "covered", "median width", "refused"),
)
MEANING = (
    "`last`: the largest rung; `beyond`: at four times its budget. Right: the verdict that the true m calls for (adopt "
    "above 1.02, reject below 1/1.02, no difference between); wrong: another one, undecided left out. Covered: 90 % "
    "intervals that hold the true m, of several variants those that hold together. Width: an interval's upper end over "
    "its lower one."
)


def _score(block: dict[str, Any], truth: float, several: bool) -> dict[str, Any]:
    """Verdict, whether it is right or wrong, and whether the interval holds the truth, with its width."""
    target = block.get("target") or {}
    low, high = target.get("together90" if several else "interval90") or (None, None)
    word = next(word for word in VERDICTS if str(block["verdict"]).startswith(word))
    due = "no difference" if 1 / WORTH <= truth <= WORTH else "adopt" if truth > 1 else "reject"
    inside = (low is None or low <= truth) and (high is None or truth <= high)
    width = high / low if low and high else math.inf
    return {
        "word": word,
        "right": word == due,
        "wrong": word not in (due, "undecided"),
        "inside": inside,
        "width": width,
    }


def judge_study(name: str, number: int, folder: pathlib.Path) -> dict[str, Any]:
    """What the command says of one study, at the last rung and beyond; its reason where it refuses."""
    study = draw_study(name, number)
    table, scores = write_table(study.rows, folder / f"{name.split()[0]}-{number}.csv", number), []
    try:
        for place, target in enumerate((None, BEYOND * study.last)):
            judged = api.judge_table(table, "base", target_flops=target, worth=WORTH)
            several = len(study.truths) > 1
            scores.append([_score(block, study.truths[block["variant"]][place], several) for block in judged.variants])
    except BadInput as reason:
        return {"kind": name, "study": number, "refused": str(reason)}
    return {"kind": name, "study": number, "last": scores[0], "beyond": scores[1]}


def count_studies(name: str, studies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts and shares of a kind; a study of several variants is wrong if any of its verdicts is."""
    row: dict[str, Any] = {"kind": name, "studies": len(studies), "refused": sum("refused" in s for s in studies)}
    for place in ("last", "beyond"):
        judged = [study[place] for study in studies if place in study]
        verdicts = [score for scores in judged for score in scores]
        row[place] = {word: sum(score["word"] == word for score in verdicts) for word in VERDICTS} | {
            "right": sum(score["right"] for score in verdicts),
            "wrong": sum(score["wrong"] for score in verdicts),
            "studies_wrong": sum(any(score["wrong"] for score in scores) for scores in judged),
            "covered": sum(score["inside"] for score in verdicts),
            "width": float(np.median([score["width"] for score in verdicts])) if verdicts else None,
        }
    return row


def format_page(result: Mapping[str, Any]) -> str:
    """The counts in Markdown."""
    cells = []
    for row in result["rows"]:
        for place in ("last", "beyond"):
            counts = [str(row[place][key]) for key in (*VERDICTS, "right", "wrong", "studies_wrong", "covered")]
            width = row[place]["width"]
            cells.append(
                [
                    row["kind"],
                    place,
                    str(row["studies"]),
                    *counts,
                    f"{width:.3f}" if width else "-",
                    str(row["refused"]),
                ]
            )
    lines = [
        "# Ablation studies that the rules did not know",
        "",
        f"`{result['command']}`, {result['date']}",
        "",
        MEANING,
        "",
    ]
    return "\n".join([*lines, *markdown_table(COLUMNS, cells), ""])


def main(argv: Sequence[str]) -> int:
    """Judge the studies and print the counts. Exit code: 0 done, 2 bad input."""
    return guarded("hidden_ablations", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("hostile.hidden_ablations", __doc__)
    parser.add_argument("--studies", type=int, default=20, help="studies of each kind")
    parser.add_argument("--only", default="", help="kinds, separated by semicolons")
    parser.add_argument("--workdir", type=folder_path, default=pathlib.Path("runs/hidden"), help="for the tables")
    options = parser.parse_args(list(argv))
    asked = [name.strip() for name in options.only.split(";") if name.strip()]
    for name in asked:
        if name not in KINDS:
            raise BadInput(f"--only: no kind {name!r}{nearest_hint(name, KINDS)}")
    options.workdir.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in asked or KINDS:
        rows.append(count_studies(name, [judge_study(name, n, options.workdir) for n in range(options.studies)]))
        print_status(f"{name}: {rows[-1]['last']}")
    result = result_header("hostile.hidden_ablations", argv) | {"rows": rows}  # a study is drawn again by its number
    place = RESULTS if not asked and options.studies >= 20 else options.workdir
    return publish_result(place, "hidden_ablations", result, format_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
