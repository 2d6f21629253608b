"""python -m checks.speed.foreign [--runs=N] [--steps=N] [--quick] [--json[=PATH]]

Measure what it costs to read runs of other programs: `scalelab runs` on 1,000 logs (--runs) of 10,000 steps (--steps)
as JSON lines of 8 columns, 2.4 GB, in a process of its own: once with an empty cache, and three times with what the
first left there. The logs are 20 simulated ones, each written 50 times. CPU seconds and peak memory beside the limits
that were set before: 60 s cold, 3 s warm, 2 GiB. --quick: 20 runs. Two minutes, and 6 GB in the folder for temporary
files.

    python -m checks.speed.foreign --quick
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import emit_json, whole_number
from scalelab.errors import WorkFailed

COLUMNS = ("step", "train_loss", "lr", "grad_norm", "tokens", "tokens_per_s", "param_norm", "update_norm")
DISTINCT = 20
WARM_RUNS = 3
LIMITS = {"cold_cpu_s": 60.0, "warm_cpu_s": 3.0, "peak_gib": 2.0}


def write_log(seed: int, n_steps: int) -> bytes:
    """A log of `n_steps` lines of COLUMNS."""
    rng, steps = np.random.default_rng(seed), np.arange(1, n_steps + 1)
    loss = 2.5 + 8.0 * steps**-0.4 + rng.normal(0, 0.02, n_steps)
    lr = 3e-4 * np.minimum(steps / 200, 0.55 + 0.45 * np.cos(np.pi * steps / n_steps))
    others = [np.exp(rng.normal(0, 0.2, n_steps)) for _ in range(4)]
    tokens, rate, weights, updates = steps * 524288, 1e5 * others[1], 100 * others[2], 1e-3 * others[3]
    columns = (steps, loss, lr, others[0], tokens, rate, weights, updates)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return b"".join(json.dumps(dict(zip(COLUMNS, row, strict=True))).encode() + b"\n" for row in rows)


def write_runs(folder: pathlib.Path, n_runs: int, n_steps: int) -> int:
    """Write the runs' folders; returns their bytes."""
    logs = [write_log(seed, n_steps) for seed in range(min(DISTINCT, n_runs))]
    for number in range(n_runs):
        place = folder / f"run-{number:04}"
        place.mkdir(parents=True)
        (place / "metrics.jsonl").write_bytes(logs[number % len(logs)])
        (place / "config.json").write_text(json.dumps({"seed": number, "learning_rate": 3e-4}))
    return sum(len(logs[number % len(logs)]) for number in range(n_runs))


def measure(folder: pathlib.Path, cache: pathlib.Path, n_runs: int) -> dict[str, float]:
    """CPU seconds and peak GiB of `scalelab runs` on the folder. WorkFailed unless it lists all runs."""
    command = [sys.executable, "-m", "scalelab", "runs", str(folder), f"--json={cache / 'runs.json'}"]
    environment = os.environ | {"SCALELAB_CACHE": str(cache / "stores")}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) or len(json.loads((cache / "runs.json").read_bytes())) != n_runs:
        raise WorkFailed(f"{' '.join(command)} did not list {n_runs:,} runs")
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "peak_gib": usage.ru_maxrss / 2**20}


def main(argv: list[str]) -> int:
    """Measure, print and write the result. Exit code 0, 1 if a command failed, 2 for bad input."""
    return guarded("foreign", _main, argv)


def _main(argv: list[str]) -> int:
    parser = command_line("speed.foreign", __doc__)
    parser.add_argument("--runs", type=whole_number, default=1000, metavar="N", help="runs (default 1000)")
    parser.add_argument("--steps", type=whole_number, default=10_000, metavar="N", help="steps of each (default 10000)")
    parser.add_argument("--quick", action="store_true", help="20 runs")
    options = parser.parse_args(argv)
    n_runs = 20 if options.quick else options.runs
    with tempfile.TemporaryDirectory() as name:
        folder, cache = pathlib.Path(name, "theirs"), pathlib.Path(name, "cache")
        cache.mkdir()
        n_bytes = write_runs(folder, n_runs, options.steps)
        cold = measure(folder, cache, n_runs)
        warm = [measure(folder, cache, n_runs) for _ in range(WARM_RUNS)]
    row: dict[str, Any] = {"runs": n_runs, "steps": options.steps, "columns": len(COLUMNS), "bytes": n_bytes}
    row |= {"cold_cpu_s": round(cold["cpu_s"], 1), "warm_cpu_s": round(min(each["cpu_s"] for each in warm), 2)}
    row |= {"peak_gib": round(max(each["peak_gib"] for each in [cold, *warm]), 2), "limits": LIMITS}
    print(json.dumps(row), file=sys.stderr, flush=True)
    content = result_header("speed.foreign", argv) | {"rows": [row]}
    (RESULTS / "foreign.json").write_text(json.dumps(content, indent=1) + "\n")
    emit_json(content, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
