"""The parts of `make gpu`: each runs in a process of its own, whose result is stored as soon as it is done."""

import datetime
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from scalelab import records
from scalelab.experiments.gpu import attention, baselines, commands, packing, resume, settings, utilisation
from scalelab.experiments.shared import describe_machine
from scalelab.train.resume.facts import package_versions

Part = Callable[[settings.Settings, pathlib.Path], dict[str, Any]]
# {part: (function, seconds at most)}, in order: first what other parts need, then what says most in the least time.
PARTS: dict[str, tuple[Part, float]] = {
    "doctor": (commands.run_doctor, 60), "mfu": (utilisation.measure_mfu, 180),
    "fp8": (utilisation.measure_fp8, 180), "baselines": (baselines.measure_torch, 180),
    "packing": (packing.measure_packing, 150), "attention": (attention.measure_attention, 60),
    "resume": (resume.compare_resumed_run, 120), "sweeps": (utilisation.measure_sweeps, 200),
    "plan": (commands.run_plan, 240), "tests": (commands.run_tests, 100), "quickstart": (commands.run_quickstart, 240),
    "isoflop": (commands.run_isoflop, 400),
}  # fmt: skip
TOTAL_S = 600.0
TINY_TIME_FACTOR = 5  # --tiny may take this many times as long: it runs on busy cores


def run_part(name: str, size: settings.Settings, folder: pathlib.Path) -> None:
    """Run one part in this process; its file holds the result, the chip and the date."""
    start = time.monotonic()
    try:
        result: dict[str, Any] = {"status": "done", "result": PARTS[name][0](size, folder / name)}
    except RuntimeError as failure:
        result = {"status": "failed", "why": str(failure)}
    result |= {"seconds": time.monotonic() - start, "date": str(datetime.date.today())}
    records.write_json(part_path(folder, name), result)


def part_path(folder: pathlib.Path, name: str) -> pathlib.Path:
    """The path of a part's result."""
    return folder / f"{name}.json"


def all_parts(names: list[str], folder: pathlib.Path, tiny: bool) -> dict[str, Any]:
    """Run every part that isn't done yet, each in a new process, within ten minutes; returns all results so far."""
    start = time.monotonic()
    for name in names:
        patience = TINY_TIME_FACTOR if tiny else 1
        left = patience * TOTAL_S - (time.monotonic() - start)
        if is_finished(folder, name) or left < 1:
            continue
        print(f"{name} …", file=sys.stderr, flush=True)
        _started(name, folder, tiny, min(left, patience * PARTS[name][1]))
    parts = {name: records.read_json(part_path(folder, name)) for name in PARTS if part_path(folder, name).exists()}
    missing = {name: {"status": "not started"} for name in names if name not in parts}
    doctor = parts.get("doctor", {}).get("result") or {}
    chips = [device["kind"] for device in doctor.get("devices", [])]
    return {
        "command": "make gpu", "date": str(datetime.date.today()), "machine": describe_machine(),
        "chip": chips[0] if chips else None,
        "devices": len(chips), "versions": package_versions(), "parts": parts | missing,
    }  # fmt: skip


def is_finished(folder: pathlib.Path, name: str) -> bool:
    """Whether the part was done before; parts that failed or ran out of time are tried again."""
    return part_path(folder, name).exists() and json.loads(part_path(folder, name).read_text())["status"] == "done"


def _started(name: str, folder: pathlib.Path, tiny: bool, most_s: float) -> None:
    """Run one part as a process with its output in NAME.log; if it ends without a result, write how it ended."""
    before = part_path(folder, name).stat().st_mtime_ns if part_path(folder, name).exists() else 0
    argv = [
        sys.executable,
        "-m",
        "scalelab.experiments.gpu",
        f"--part={name}",
        f"--workdir={folder}",
        *["--tiny"] * tiny,
    ]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    with log.open("w") as reason:
        running = subprocess.Popen(argv, stdout=reason, stderr=reason, start_new_session=True)
    try:
        running.wait(timeout=most_s)
        why = f"exit {running.returncode}: {(log.read_text().strip().splitlines() or [''])[-1]}"
    except subprocess.TimeoutExpired:
        why = f"stopped after {most_s:.0f} s"
    finally:
        kill_part(running)
    if not part_path(folder, name).exists() or part_path(folder, name).stat().st_mtime_ns == before:
        records.write_json(
            part_path(folder, name), {"status": "failed", "why": why, "date": str(datetime.date.today())}
        )


def kill_part(running: subprocess.Popen) -> None:
    """Kill the part and all processes that it started."""
    try:
        os.killpg(running.pid, 9)
    except ProcessLookupError:
        return
    running.wait()
