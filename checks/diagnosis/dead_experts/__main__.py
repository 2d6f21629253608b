"""Train small runs with experts, faulty and healthy, and score what `scalelab diagnose` says of each.

    python -m checks.diagnosis.dead_experts [--only=NAME;…] [--seed=0] [--workdir=DIR] [--finished] [--json[=PATH]]

The cases were written, and committed, before the rules; thresholds were set on a few runs of seed 100. A plant counts
as right if its cause is the first verdict, a healthy run if nothing is named; `diagnose --fast` judges, as the code of
a plant is there in training alone. Each result is kept in --workdir; the same command goes on with what is missing.
Writes diagnose_experts.json and .md into checks/results, unless --only leaves something out. About ten minutes of CPU.
Exit 1 where a plant is not named first, or a healthy run has a verdict.

    python -m checks.diagnosis.dead_experts --only="the balance's sign flipped"
"""

import json
import pathlib
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from checks.diagnosis.dead_experts.cases import EXPERTS, HEALTHY, PLANTS
from checks.diagnosis.diagnose.runs import train_small
from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.__main__ import main as run_command
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import BadInput, WorkFailed, nearest_hint
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.record import records
from scalelab.study import write_once

CASES = PLANTS | HEALTHY
LAST = 50  # steps at the end of a run whose medians tell what the case did
MEASURES = {"idle": "experts/idle", "entropy": "experts/entropy", "router logit": "block/router_logit"}
COLUMNS = ("case", "seed", "planted", "verdicts", "right", *MEASURES, "evidence")


def main(argv: Sequence[str]) -> int:
    """Run what is missing, write the table. Exit code: see above; 2 bad input."""
    return guarded("dead_experts", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("diagnosis.dead_experts", __doc__)
    parser.add_argument("--only", default="", help="cases by name, separated by semicolons")
    parser.add_argument(
        "--finished",
        action="store_true",
        help="run nothing: write the table of what is finished, of all seeds up to --seed",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the runs")
    parser.add_argument("--workdir", type=folder_path, default=pathlib.Path("runs/diagnose_experts"), help="for runs")
    options = parser.parse_args(argv)
    names = [name.strip() for name in options.only.split(";") if name.strip()] or list(CASES)
    for name in names:
        if name not in CASES:
            raise BadInput(f"--only: no case {name!r}{nearest_hint(name, CASES)}")
    seeds = range(options.seed + 1) if options.finished else [options.seed]
    asked = [(name, seed) for seed in seeds for name in names]
    if options.finished:
        asked = [each for each in asked if _place(options.workdir, *each).with_suffix(".json").exists()]
    rows = [judge_once(options.workdir, name, seed) for name, seed in asked]
    result = result_header("diagnosis.dead_experts", argv) | {
        "right": sum(row["right"] for row in rows),
        "rows": rows,
    }
    if options.finished or set(names) == set(CASES):
        write_result(RESULTS, "diagnose_experts", result, format_page(result))
    if options.json != "-":
        print(format_page(result))
    emit_json(result, options.json)
    return 0 if result["right"] == len(rows) else 1


def judge_once(workdir: pathlib.Path, name: str, seed: int) -> dict[str, Any]:
    """The result of one case, read if it was kept; its folder is deleted once it is judged."""
    place = _place(workdir, name, seed)

    def judge() -> dict[str, Any]:
        print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
        shutil.rmtree(place, ignore_errors=True)
        begin = time.process_time()
        row = judge_case(name, seed, place)
        return row | {"cpu_s": round(time.process_time() - begin, 1)}

    row: dict[str, Any] = write_once(place.with_suffix(".json"), judge)
    shutil.rmtree(place, ignore_errors=True)
    return row


def _place(workdir: pathlib.Path, name: str, seed: int) -> pathlib.Path:
    """The folder of a case's run; with `.json` the file that keeps its result."""
    return workdir / f"{'-'.join(name.split()).replace('/', '')}-{seed}"


def judge_case(name: str, seed: int, folder: pathlib.Path) -> dict[str, Any]:
    """Train a case in `folder`, and ask the command by the folder alone: the fault's code is gone when it is judged."""
    case = CASES[name]
    with case.fork():
        train_small(folder, {**case.changes, "train.seed": seed})
    answer = folder.with_suffix(".verdicts")
    code = run_command(["diagnose", str(folder), "--fast", f"--json={answer}"])
    if code not in (0, 1):  # 1: it has findings
        raise WorkFailed(f"scalelab diagnose {folder} ended with {code}")
    verdicts = json.loads(answer.read_text())["verdicts"]
    answer.unlink()
    causes = [verdict["cause"] for verdict in verdicts]
    right = causes[:1] == [case.cause] if case.cause else not causes
    return {"name": name, "seed": seed, "cause": case.cause, "verdicts": verdicts, "right": right} | measure(folder)


def measure(folder: pathlib.Path) -> dict[str, float]:
    """Medians of MEASURES over the run's last steps."""
    lines = [line for line in records.read_metrics(folder) if "train_loss" in line][-LAST:]
    return {name: float(np.median([line[key] for line in lines])) for name, key in MEASURES.items()}


def format_page(result: Mapping[str, Any]) -> str:
    """The result in Markdown."""
    rows = result["rows"]
    missing = [name for name in CASES if name not in {row["name"] for row in rows}]
    lines = ["# Dead experts and collapsed routers: what diagnose says", ""]
    lines += [f"`{result['command']}`, {result['date']}: {result['machine']}", ""]
    lines += [f"{result['right']} of {len(rows)} right: a plant if its cause comes first, a healthy run if none does."]
    lines += [
        f"Two blocks of width 32 on a bigram language, {EXPERTS['train.steps']} steps, most with "
        f"{EXPERTS['model.n_experts']} experts. Idle experts, entropy and router logits: medians of the last {LAST} "
        "steps, over all layers, of the worst layer, and the largest. The cases were written before the rules, and "
        "each row was judged by those of its time.",
        "",
    ]
    lines += [f"Not run: {'; '.join(missing)}.", ""] if missing else []
    return "\n".join([*lines, *markdown_table(COLUMNS, map(_cells, rows)), ""])


def _cells(row: Mapping[str, Any]) -> list[str]:
    verdicts = ", ".join(f"{v['cause']} ({v['kind']})" for v in row["verdicts"][:3]) or "none"
    evidence = next((v["evidence"] for v in row["verdicts"] if v["cause"] == row["cause"]), "")
    numbers = [f"{row['idle']:.0f}", f"{row['entropy']:.2f}", f"{row['router logit']:.3g}"]
    return [
        row["name"],
        str(row["seed"]),
        row["cause"] or "healthy",
        verdicts,
        "yes" if row["right"] else "no",
        *numbers,
        evidence,
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
