"""Give hostile folders, buckets, tables and files to every command that reads one, beside canaries that none may touch.

    python -m checks.hostile.strangers [--half=first|second|both] [--only=TEXT,…] [--commands=runs,…] [--seed=0]
    [--jobs=2]

A pair is a case and a command line that reaches it. All pairs run in one warm process a command; 200 random ones and
those that were seen to fail run as real processes too. A pair is wrong if a canary was touched or shown, code of the
folder ran, a traceback was printed, the exit code was not 0, 1 or 2, it took 10 s (waits for a core left out) or 1 GiB,
or a raw escape was printed. The same command goes on after a kill, as long as scalelab and these files are the same.
Writes strangers.json and strangers.md into checks/results, unless something is left out. At most half an hour on 2
quiet cores. Exit 1 where a pair is wrong.

    python -m checks.hostile.strangers --half=first --only="figures/loss.csv"
"""

import json
import pathlib
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from checks.hostile.strangers.cases.opened import first_cases
from checks.hostile.strangers.cases.unopened import second_cases
from checks.hostile.strangers.commands import REACHES, reaches
from checks.hostile.strangers.edits import Case
from checks.hostile.strangers.honest import make_honest, start_store
from checks.hostile.strangers.judge import BYTES, KINDS, SECONDS
from checks.hostile.strangers.pairs import Pair, Slot, hash_code
from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import BadInput, WorkFailed
from scalelab.experiments.shared import markdown_table, write_result

HALVES = {"first": first_cases, "second": second_cases}
REAL = 200
CHUNK = 60  # pairs of one command that a slot takes at a time
EXAMPLES = 3  # of each kind of wrong, on the page


def main(argv: Sequence[str]) -> int:
    """Run what is missing, write the result. Exit code: 0 none is wrong, 1 some are, 2 bad input."""
    return guarded("strangers", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("hostile.strangers", __doc__)
    parser.add_argument("--half", choices=[*HALVES, "both"], default="both", help="which half of the cases")
    parser.add_argument("--only", default="", help="cases whose names hold one of these texts, separated by commas")
    parser.add_argument("--commands", default="", help="only these commands, separated by commas")
    parser.add_argument("--sample", type=int, default=0, help="only so many random pairs (0: all)")
    parser.add_argument("--real", type=int, default=REAL, help="random pairs that run as real processes")
    parser.add_argument("--seed", type=int, default=0, help="of the random pairs")
    parser.add_argument("--jobs", type=int, default=2, help="pairs at a time")
    parser.add_argument("--workdir", type=folder_path, default=pathlib.Path("runs/strangers"), help="for the folders")
    options = parser.parse_args(argv)
    pairs = choose_pairs(options)
    whole = options.half == "both" and not (options.only or options.commands or options.sample)
    started = time.monotonic()
    rows = run_pairs(pairs, options.workdir.resolve(), options.jobs, hash_code())
    result = result_header("hostile.strangers", argv) | summarise(rows, time.monotonic() - started)
    if whole and options.real >= REAL:
        write_result(RESULTS, "strangers", result, format_page(result))
        shutil.rmtree(options.workdir / "slots", ignore_errors=True)
    if options.json != "-":
        print(format_page(result))
    emit_json(result, options.json)
    return 1 if result["wrong"] or result["controls_wrong"] else 0


def choose_pairs(options: Any) -> list[Pair]:
    """The pairs that are asked for, those that are real processes last; before them each line on an honest thing."""
    halves = [*HALVES] if options.half == "both" else [options.half]
    cases = [(half, case) for half in halves for case in HALVES[half]()]
    texts = [text for text in options.only.split(",") if text]
    cases = [(half, case) for half, case in cases if not texts or any(text in case.name for text in texts)]
    names = {reach.command for lines in REACHES.values() for reach in lines}
    asked = {name for name in options.commands.split(",") if name}
    if not cases or asked - names:
        raise BadInput(f"no case is named {options.only!r}" if not cases else f"--commands: one of {sorted(names)}")
    pairs = [
        Pair(case, reach, half)
        for half, case in cases
        for reach in reaches(case)
        if not asked or reach.command in asked
    ]
    chance = random.Random(options.seed)
    if options.sample:
        pairs = chance.sample(pairs, min(options.sample, len(pairs)))
    real = chance.sample(pairs, min(options.real, len(pairs)))
    real += [pair for pair in pairs if pair.case.seen == pair.reach.command and pair not in real]
    met = dict.fromkeys((pair.case.kind, pair.reach) for pair in pairs)
    controls = [Pair(Case("honest", kind, lambda site: None), reach, "control") for kind, reach in met]
    return [*controls, *pairs, *(Pair(pair.case, pair.reach, pair.half, real=True) for pair in real)]


def run_pairs(pairs: Sequence[Pair], folder: pathlib.Path, jobs: int, code: str) -> list[dict[str, Any]]:
    """The rows of all pairs: those that are stored are read, the others are run in `jobs` slots."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pairs.jsonl"
    stored = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    rows = {row["key"]: row for row in stored if row["code_hash"] == code}
    missing = [pair for pair in pairs if pair.key not in rows]
    chunks = split_chunks(missing)
    lock, count = threading.Lock(), [len(pairs) - len(missing)]
    troubles: list[BaseException] = []
    with start_store() as store, open(path, "a") as file:
        make_honest(folder / "honest", store, hash_code("honest.py"), tell)

        def work(number: int) -> None:
            slot = Slot(folder / "slots" / str(number), folder / "honest", store)
            try:
                while chunks and not troubles:
                    for pair in chunks.pop(0):
                        row = {"key": pair.key, "code_hash": code} | slot.run(pair)
                        with lock:
                            rows[pair.key] = row
                            file.write(json.dumps(row) + "\n")
                            file.flush()
                            count[0] += 1
                            tell_row(row, count[0], len(pairs))
            except BaseException as trouble:
                troubles.append(trouble)
            finally:
                slot.stop()

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if troubles:
        raise WorkFailed(f"the study itself failed: {troubles[0]!r}") from troubles[0]
    return [rows[pair.key] for pair in pairs]


def split_chunks(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Pairs by command, in chunks that slots take in turn; honest ones first, real processes last."""
    groups: dict[tuple[bool, bool, str], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.half != "control", pair.real, pair.reach.command), []).append(pair)
    chunks = [group[i : i + CHUNK] for _, group in sorted(groups.items()) for i in range(0, len(group), CHUNK)]
    return chunks


def tell(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def tell_row(row: Mapping[str, Any], number: int, total: int) -> None:
    """Say what is wrong at once, else every hundredth pair."""
    if row["wrong"]:
        what = "; ".join(f"{kind}: {text}" for kind, text in row["wrong"].items())
        tell(f"{number}/{total} wrong: {row['case']!a} | {row['line']} | {what!a}"[:400])
    elif number % 100 == 0 or number == total:
        tell(f"{number}/{total}")


def summarise(rows: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """The counts of a result, and every row that is wrong."""
    controls = [row for row in rows if row["half"] == "control"]
    tried = [row for row in rows if row["half"] != "control"]
    wrong = [row for row in tried if row["wrong"]]
    kinds = Counter(kind for row in wrong for kind in row["wrong"])
    counts = {
        name: {"pairs": len(part), "survived": sum(not row["wrong"] for row in part)}
        for name, part in {
            "first half": [row for row in tried if row["half"] == "first" and not row["real"]],
            "second half": [row for row in tried if row["half"] == "second" and not row["real"]],
            "real processes": [row for row in tried if row["real"]],
        }.items()
    }
    packages = ("moto", "obstore", "orbax-checkpoint", "safetensors", "pyarrow", "tokenizers")
    return {
        "versions": {name: version(name) for name in packages}, "seconds": round(seconds), "counts": counts,
        "cases": len({row["case"] for row in tried}), "pairs": len(tried), "survived": len(tried) - len(wrong),
        "wrong": len(wrong), "wrong_by_kind": {kind: kinds[kind] for kind in KINDS if kinds[kind]},
        "exits": dict(sorted(Counter(str(row["code"]) for row in tried).items())),
        "slowest_s": max((row["seconds"] for row in tried), default=0.0),
        "largest_mib": max((row["mib"] for row in tried), default=0),
        "once_only": sum(bool(row["once"]) for row in tried), "controls": len(controls),
        "controls_refused": [f"{row['kind']}: {row['line']}: {row['last']}" for row in controls if row["code"] == 2],
        "controls_wrong": [row for row in controls if row["wrong"]], "wrong_pairs": wrong,
    }  # fmt: skip


def format_page(result: Mapping[str, Any]) -> str:
    """The result in Markdown: counts, kinds, the first examples of each."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines = ["# Hostile folders, buckets, tables and files", ""]
    lines += [f"`{result['command']}`, {result['date']}: {result['machine']}; {versions}; {result['seconds']} s", ""]
    lines += [f"{result['cases']} cases, {result['pairs']} pairs: {result['survived']} survived, "]
    lines[-1] += f"{result['wrong']} wrong. Of {result['controls']} lines on honest things "
    lines[-1] += f"{len(result['controls_wrong'])} are wrong, {len(result['controls_refused'])} refused."
    lines += ["", RULES.format(seconds=SECONDS, mib=BYTES >> 20), ""]
    counts = [[name, str(part["pairs"]), str(part["survived"])] for name, part in result["counts"].items()]
    lines += markdown_table(("", "pairs", "survived"), counts)
    exits = ", ".join(f"{code}: {number}" for code, number in result["exits"].items())
    lines += ["", f"Exit codes: {exits}. The slowest took {result['slowest_s']:.1f} s of its own, the largest grew "]
    lines[-1] += f"to {result['largest_mib']} MiB. {result['once_only']} were wrong in one process and not the next."
    for kind, number in result["wrong_by_kind"].items():
        rows = [row for row in result["wrong_pairs"] if kind in row["wrong"]][:EXAMPLES]
        lines += ["", f"## {kind}: {number}", ""]
        lines += [f"- {row['case']!a}, `scalelab {row['line']}`: {row['wrong'][kind]!a}"[:400] for row in rows]
    return "\n".join(lines) + "\n"


RULES = """A pair is one command line on one hostile thing. Outside of the work folder lie canaries: a home, files, a
run, a module that leaves a mark. Wrong: canary (one was touched, or a file made outside), code (it ran), leak (the
content of a linked file was printed or served), traceback, exit (not 0, 1 or 2), signal (died of one), time
({seconds:g} s, waits for a core left out), memory ({mib} MiB in one of its processes), escape (a raw
control character or mark of direction in the output). What is wrong without harm to a canary counts if it
happens again in a new process."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
