"""What `runs`, `sweep --status`, `fit` and `report` cost on thousands of run folders, in seconds and memory.

    python -m checks.speed.thousands --workdir=/tmp/thousands [--trials=1000,10000] [--source=SWEEP]

Trains the sweep of the README (four learning rates, two seeds), or takes the runs of --source, and copies them into
sweeps of many trials: each has a config and an identity of its own and moved losses. Each command runs in a process of
its own: once cold (no index, files dropped from the page cache) and three times warm. One sweep more has logs of ten
times the length: memory must not grow with them. The page of the smallest sweep is opened in Chromium, where there is
one. Writes `checks/results/thousands.json` and `.md`.

    python -m checks.speed.thousands --workdir=runs/thousands --trials=1000
"""

import itertools
import json
import math
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, folder_path
from scalelab.errors import BadInput, WorkFailed
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.index.store import INDEX_FILE, READ_FILES
from scalelab.record import listing, records
from scalelab.record.identity import identity
from scalelab.record.soundness import size as model_size

COMMANDS = {
    "runs": ["runs", "FOLDER"],
    "sweep --status": ["sweep", "--status", "--workdir=FOLDER"],
    "fit --best-of=lr --per=N,D": ["fit", "FOLDER", "--best-of=lr", "--per=N,D"],
    "fit --where='optim.peak_lr == 0.001'": ["fit", "FOLDER", "--where=optim.peak_lr == 0.001"],
}
WARM_RUNS = 3
LONGER = 10  # times the lines of each log, in the sweep of long logs
SEEDS, SIZES, LENGTHS, STEPS = 4, 5, 5, 300
LAW = {"E": 1.1, "A": 30.0, "B": 300.0, "alpha": 0.4, "beta": 0.4}  # losses of the copies, before the learning rate's


def write_copies(source: pathlib.Path, folder: pathlib.Path, trials: int, longer: int = 1) -> None:
    """Write a sweep of `trials` finished runs: copies of the really trained ones of `source`, each with a config of its
    own and its losses moved; metrics.jsonl has its lines `longer` times.

    Sizes, lengths, learning rates and seeds form a grid; files, columns and numbers of lines are those of the source.
    """
    templates = [_read_files(run) for run in listing.run_folders(source)]
    for template in templates:
        template["metrics.jsonl"] *= longer
    steps, values = {}, {}
    for template, (name, changes) in zip(itertools.cycle(templates), _grid(trials), strict=False):
        place = folder / "runs" / name
        place.mkdir(parents=True)
        for file, text in _copy_files(template, name, changes).items():
            (place / file).write_text(text)
        steps[name] = changes["train.steps"]
        values[name] = changes
    records.write_json(folder / "sweep.json", {"trials": steps, "packs": {"copies": list(steps)}, "values": values})


def _grid(trials: int) -> Iterator[tuple[str, dict[str, Any]]]:
    rates = trials // (SIZES * LENGTHS * SEEDS)
    shapes = itertools.product(range(SIZES), range(LENGTHS), range(rates), range(SEEDS))
    for number, (size, length, rate, seed) in enumerate(shapes):
        peak_lr = 1e-3 * 100 ** (rate / max(1, rates - 1))
        changes = {"model.d_model": 32 * 2**size, "train.steps": STEPS * 2**length, "optim.peak_lr": peak_lr}
        yield f"{number:05}", changes | {"train.seed": seed}


def _read_files(run: pathlib.Path) -> dict[str, Any]:
    config, record = (records.read_json(run / name) for name in ("config.json", "record.json"))
    lines = {name: records.read_json_lines(run / name) for name in ("metrics.jsonl", "events.jsonl")}
    return {"config.json": config, "record.json": record} | lines


def _copy_files(template: Mapping[str, Any], name: str, changes: Mapping[str, Any]) -> dict[str, str]:
    config = json.loads(json.dumps(template["config.json"]))
    for key, value in changes.items():
        group, _, last = key.partition(".")
        config[group][last] = value
    record, longer = template["record.json"], changes["train.steps"] // STEPS
    params = model_size.count_parameters(config)
    assert params  # of the sweep's small models it is known
    N, D = params["total"], record["tokens"] * longer
    bigger = N / record["params"]["total"]
    per_token = bigger * record["flops_per_token"]["exact"]
    off = 0.05 * math.log10(changes["optim.peak_lr"] / 1e-2) ** 2 + random.Random(name).gauss(0, 0.005)
    loss = LAW["E"] + LAW["A"] / N ** LAW["alpha"] + LAW["B"] / D ** LAW["beta"] + off
    moved = loss / record["val_loss"]
    flops = {"6N": 6.0 * N, "chinchilla": 1.02 * per_token, "exact": per_token}
    record = record | {
        "name": name,
        "identity": identity(records.flatten_keys(config)),
        "steps": record["steps"] * longer,
        "tokens": D,
        "val_loss": record["val_loss"] * moved,
        "bpb": record["bpb"] * moved,
        "params": params,
        "params_by_group": {"all": N},
        "flops_per_token": flops,
        "flops": {("6ND" if name == "6N" else name): value * D for name, value in flops.items()},
    }
    faster = changes["optim.peak_lr"] / template["config.json"]["optim"]["peak_lr"]
    moves = dict.fromkeys(("train_loss", "val_loss", "bpb"), moved)
    moves |= {"step": longer, "tokens": longer, "flops": longer * bigger, "lr": faster}
    metrics = [{key: v and v * moves.get(key, 1) for key, v in line.items()} for line in template["metrics.jsonl"]]
    return {
        "config.json": json.dumps(config, indent=1), "record.json": json.dumps(record, indent=1),
        "metrics.jsonl": _write_lines(metrics), "events.jsonl": _write_lines(template["events.jsonl"]),
    }  # fmt: skip


def _write_lines(lines: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def measure_command(name: str, folder: pathlib.Path) -> dict[str, Any]:
    """Seconds of a command, cold and warm, its CPU seconds (the least of the warm ones) and its peak memory in MB."""
    forget(folder)
    cold = _run(COMMANDS[name], folder)
    time.sleep(2.5)  # files of the first seconds are not trusted yet
    _run(COMMANDS[name], folder)
    warm = [_run(COMMANDS[name], folder) for _ in range(WARM_RUNS)]
    return {
        "cold_s": cold["s"],
        "cold_cpu_s": cold["cpu_s"],
        "warm_s": statistics.median(run["s"] for run in warm),
        "warm_cpu_s": min(run["cpu_s"] for run in warm),
        "cold_peak_mb": cold["peak_mb"],
        "warm_peak_mb": max(run["peak_mb"] for run in warm),
    }


def forget(folder: pathlib.Path) -> None:
    """Remove the index, and drop the runs' files from the page cache as far as the system allows."""
    (folder / "runs" / INDEX_FILE).unlink(missing_ok=True)
    for run in os.scandir(folder / "runs"):
        for name in READ_FILES if hasattr(os, "posix_fadvise") else ():
            path = pathlib.Path(run.path, name)
            if path.exists():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _run(arguments: Sequence[str], folder: pathlib.Path) -> dict[str, float]:
    command = [sys.executable, "-m", "scalelab", *(word.replace("FOLDER", str(folder)) for word in arguments)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    error = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status):
        raise WorkFailed(f"{' '.join(command)}: {error.decode(errors='replace')[-300:]}")
    return {"s": seconds, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss / 1024}


def main(argv: Sequence[str]) -> int:
    """Measure and write the result; exit code 0, 1 if a command failed, 2 for bad input."""
    return guarded("thousands", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("speed.thousands", __doc__)
    parser.add_argument("--workdir", required=True, type=folder_path, metavar="DIR", help="where the sweeps are made")
    parser.add_argument("--trials", default="1000,10000", metavar="N,N", help="sizes (default: 1000,10000)")
    parser.add_argument(
        "--source", type=folder_path, metavar="SWEEP", help="trained runs to copy (default: train some)"
    )
    parser.add_argument("--out", type=folder_path, default=RESULTS, metavar="DIR", help="where the result goes")
    options = parser.parse_args(argv)
    sizes = _parse_sizes(options.trials)
    source = options.source or options.workdir / "source"
    if not options.source and not (source / "sweep.json").exists():
        subprocess.run(
            [sys.executable, "-m", "scalelab", "sweep", "--config=lr_seeds", f"--workdir={source}"], check=True
        )
    rows = []
    for trials, longer in [*((trials, 1) for trials in sizes), (sizes[0], LONGER)]:
        folder = options.workdir / f"{trials}x{longer}"
        shutil.rmtree(folder, ignore_errors=True)
        write_copies(source, folder, trials, longer)
        for name in COMMANDS:
            rows.append({"command": name, "trials": trials, "longer": longer} | measure_command(name, folder))
            print(rows[-1], file=sys.stderr, flush=True)
    page = measure_page(options.workdir / f"{sizes[0]}x1")
    result = result_header("speed.thousands", argv) | {"rows": rows, "page": page}
    write_result(options.out, "thousands", result, render_page(result))
    emit_json(result, options.json)
    return 0


def _parse_sizes(text: str) -> list[int]:
    least = SIZES * LENGTHS * SEEDS
    sizes = [int(part) if part.isdigit() else 0 for part in text.split(",")]
    for size in sizes:
        if size < least or size % least:
            raise BadInput(
                f"--trials={text}: {size} is not a multiple of {least}; nearest: {max(least, size // least * least)}"
            )
    return sizes


def measure_page(folder: pathlib.Path) -> dict[str, Any]:
    """Seconds to write the report of a sweep, its size, and when Chromium had drawn it, in seconds after navigation."""
    forget(folder)
    report = _run(["report", "FOLDER"], folder)
    page = folder / "report.html"
    facts: dict[str, Any] = {
        "write_s": report["s"],
        "write_peak_mb": report["peak_mb"],
        "mb": page.stat().st_size / 1e6,
    }
    try:
        from tests.report.chromium import CHROMIUM, Browser  # of a checkout
    except ImportError:
        return facts | {"opened_s": None}
    if not CHROMIUM.exists():
        return facts | {"opened_s": None}
    times = []
    for _ in range(WARM_RUNS):
        with Browser() as browser:
            browser.open(page)
            times.append(browser.run("performance.now()") / 1e3)
    return facts | {"opened_s": statistics.median(times)}


def render_page(result: Mapping[str, Any]) -> str:
    """The result as a page."""
    columns = (
        "command",
        "trials",
        "log lines",
        "cold s",
        "(CPU s)",
        "warm s",
        "(CPU s)",
        "peak MB cold",
        "peak MB warm",
    )
    keys = ("cold_s", "cold_cpu_s", "warm_s", "warm_cpu_s")
    cells = [
        [
            f"`{row['command']}`",
            f"{row['trials']:,}",
            f"x{row['longer']}",
            *(f"{row[key]:.2f}" for key in keys),
            f"{row['cold_peak_mb']:.0f}",
            f"{row['warm_peak_mb']:.0f}",
        ]
        for row in result["rows"]
    ]
    page = result["page"]
    opened = (
        "no browser here"
        if page["opened_s"] is None
        else f"drawn {page['opened_s']:.2f} s after navigation in Chromium"
    )
    return "\n".join([
        "# Thousands of trials", "",
        f"`{result['command']}` on {result['date']}: {result['machine']}. The number of cores and the load beside it "
        "tell how far seconds and CPU seconds are apart.", "",
        "Cold: no index, and the runs' files dropped from the page cache (folders' entries stay in memory). Warm: the "
        f"index is there; median of {WARM_RUNS}.", "",
        *markdown_table(columns, cells), "",
        f"`scalelab report` of {result['rows'][0]['trials']:,} trials: written in {page['write_s']:.1f} s "
        f"(peak {page['write_peak_mb']:.0f} MB), {page['mb']:.2f} MB, {opened}.", "",
        "## What this cannot tell", "",
        "The folders are copies of eight trained runs, with logs of some 25 lines each: real sweeps differ in the "
        "length of their logs. The disk is local; on a network file system each of the six stats a run costs a round "
        "trip, which the index does not save. Other people's work on the machine is in the seconds.", "",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
