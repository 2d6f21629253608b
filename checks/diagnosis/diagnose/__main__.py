"""Plant faults in small real runs and in records, and score what `scalelab diagnose` says of each, and of healthy runs.

    python -m checks.diagnosis.diagnose [--only=NAME,…] [--seed=0] [--workdir=runs/diagnose] [--json[=PATH]]

A plant counts as first if the planted cause is the first verdict, as third if it is among the first three. Thresholds
were chosen on runs of seeds 100 and 101; the table is of other seeds. Each result is kept in --workdir; the same
command goes on with what is missing. Writes diagnose.json and diagnose.md into checks/results, unless --only leaves
something out. About twenty minutes of CPU. Exit 1 where fewer than 36 plants come first, one is not among three, or a
healthy run has a verdict.

    python -m checks.diagnosis.diagnose --only="peak LR x 30"
"""

import os
import pathlib
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from checks.diagnosis.diagnose.healthy import HEALTHY
from checks.diagnosis.diagnose.plants import PLANTS
from checks.diagnosis.diagnose.score import judge_healthy, judge_plant
from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import BadInput, nearest_hint
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.study import write_once

FIRST_WANTED, PLANTS_WANTED, HEALTHY_WANTED = 36, 40, 20
HEALTHY_SEEDS = 2
COLUMNS = ("fault", "planted cause", "first three verdicts", "place", "evidence of the planted cause")


def main(argv: Sequence[str]) -> int:
    """Run what is missing, write the table. Exit code: see above; 2 bad input."""
    return guarded("diagnose", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("diagnosis.diagnose", __doc__)
    parser.add_argument("--only", default="", help="faults and healthy recipes by name, separated by commas")
    parser.add_argument("--finished", action="store_true", help="run nothing: write the table of what is finished")
    parser.add_argument("--seed", type=int, default=0, help="seed of the plants; healthy runs take it and the next")
    parser.add_argument("--workdir", type=folder_path, default=pathlib.Path("runs/diagnose"), help="for the runs")
    options = parser.parse_args(argv)
    names = _chosen(options.only)
    if options.finished:
        names = {name for name in names if any(_place(options, name, seed).exists() for seed in _seeds(options, name))}
    plants = [_kept(options, name, judge_plant, options.seed) for name in PLANTS if name in names]
    healthy = [
        _kept(options, name, judge_healthy, seed)
        for name in HEALTHY
        if name in names
        for seed in _seeds(options, name)
        if not options.finished or _place(options, name, seed).exists()
    ]
    flags = {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
    result = (
        result_header("diagnosis.diagnose", argv)
        | flags
        | _counts(plants, healthy)
        | {"plants": plants, "healthy": healthy}
    )
    whole = names == {*PLANTS, *HEALTHY}
    if whole or options.finished:
        write_result(RESULTS, "diagnose", result, format_page(result))
    if options.json != "-":
        print(summary(result) if whole else format_page(result))
    emit_json(result, options.json)
    return 0 if passed(result, whole) else 1


def _chosen(only: str) -> set[str]:
    """The names asked for; all without any. BadInput for an unknown one."""
    known = {*PLANTS, *HEALTHY}
    asked = {name.strip() for name in only.split(";" if ";" in only else ",") if name.strip()}
    if only in known:
        asked = {only}
    for name in asked - known:
        raise BadInput(f"--only: no fault {name!r}{nearest_hint(name, known)}")
    return asked or known


def _kept(options: Any, name: str, judge: Any, seed: int) -> dict[str, Any]:
    """The result of one run, read if it was kept; its folder is deleted once it is judged."""
    kept = _place(options, name, seed)
    place = kept.with_name(kept.name.removesuffix(".json"))

    def judge_run() -> dict[str, Any]:
        print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
        shutil.rmtree(place, ignore_errors=True)
        begin = time.process_time()
        result = {"name": name, "seed": seed} | judge(name, seed, place)
        return result | {"cpu_s": round(time.process_time() - begin, 1)}

    result: dict[str, Any] = write_once(kept, judge_run)
    shutil.rmtree(place, ignore_errors=True)
    return result


def _place(options: Any, name: str, seed: int) -> pathlib.Path:
    """The file that keeps a result."""
    return options.workdir / f"{'-'.join(name.split()).replace('/', '')}-{seed}.json"


def _seeds(options: Any, name: str) -> range:
    return range(options.seed, options.seed + (HEALTHY_SEEDS if name in HEALTHY else 1))


def _counts(plants: Sequence[Mapping[str, Any]], healthy: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {
        "planted": len(plants),
        "first": sum(plant["place"] == 1 for plant in plants),
        "among_three": sum(0 < plant["place"] <= 3 for plant in plants),
        "healthy_runs": len(healthy),
        "healthy_with_a_verdict": sum(bool(run["verdicts"]) for run in healthy),
    }


def passed(result: Mapping[str, Any], whole: bool) -> bool:
    """Whether the counts are those that the study asks for."""
    enough = not whole or (result["planted"] >= PLANTS_WANTED and result["healthy_runs"] >= HEALTHY_WANTED)
    first = result["planted"] - result["first"] <= PLANTS_WANTED - FIRST_WANTED
    return enough and first and result["among_three"] == result["planted"] and not result["healthy_with_a_verdict"]


def summary(result: Mapping[str, Any]) -> str:
    """The counts in one line."""
    return (
        f"{result['planted']} planted faults: the cause first in {result['first']}, among three in "
        f"{result['among_three']}; {result['healthy_runs']} healthy runs, {result['healthy_with_a_verdict']} of them "
        "with a verdict"
    )


def format_page(result: Mapping[str, Any]) -> str:
    """The result in Markdown."""
    flags = f", XLA_FLAGS={result['XLA_FLAGS']}" if result["XLA_FLAGS"] else ""
    missing = sorted({*PLANTS, *HEALTHY} - {row["name"] for row in (*result["plants"], *result["healthy"])})
    lines = ["# Planted faults and what diagnose says", ""]
    lines += [f"`{result['command']}`, {result['date']}: {result['machine']}{flags}", "", f"{summary(result)}.", ""]
    lines += [f"Not run: {'; '.join(missing)}.", ""] if missing else []
    lines += [
        "Thresholds were chosen on runs of seeds 100 and 101. The rows are of the seeds named, which chose nothing."
    ]
    lines += ["", *markdown_table(COLUMNS, map(_plant_cells, result["plants"])), "", "## Healthy runs", ""]
    lines += markdown_table(("recipe", "seed", "loss", "verdicts"), map(_healthy_cells, result["healthy"]))
    return "\n".join([*lines, ""])


def _plant_cells(plant: Mapping[str, Any]) -> list[str]:
    verdicts = ", ".join(f"{v['cause']} ({v['kind']})" for v in plant["verdicts"][:3])
    evidence = next((v["evidence"] for v in plant["verdicts"] if v["cause"] == plant["cause"]), "")
    return [plant["name"], plant["cause"], verdicts or "none", str(plant["place"] or "-"), evidence.replace("|", "/")]


def _healthy_cells(run: Mapping[str, Any]) -> Iterable[str]:
    verdicts = ", ".join(verdict["cause"] for verdict in run["verdicts"])
    return [run["name"], str(run["seed"]), f"{run['val_loss']:.4f}", verdicts or "none"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
