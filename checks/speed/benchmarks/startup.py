"""Time from the start of a process to its first finished step of configs/tiny.py, with a cold and a warm cache."""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any


def measure_startup(rounds: int) -> dict[str, Any]:
    """Median seconds of each, alternating.

    Every cold start has an empty compilation cache; the warm start after it has that cache filled.
    """
    cold, warm = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(_first_step_s(folder, "cold"))
            warm.append(_first_step_s(folder, "warm"))
    ratios = [b / a for a, b in zip(cold, warm, strict=True)]
    return {
        "cold_s": statistics.median(cold),
        "warm_s": statistics.median(warm),
        "ratio": statistics.median(ratios),
        "ratio_range": (min(ratios), max(ratios)),
    }


def _first_step_s(folder: str, name: str) -> float:
    """Seconds until the first line of metrics; one step a dispatch, so that line is the first step."""
    workdir = pathlib.Path(folder, name)
    values = {"log.every_steps": 1, "train.steps_per_dispatch": 1, "train.steps": 3, "eval.every_steps": 3}
    command = [sys.executable, "-m", "scalelab", "train", "--config=configs/tiny.py", f"--workdir={workdir}"]
    command += [f"--config.{key}={value}" for key, value in values.items()]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}
    start, metrics = time.perf_counter(), workdir / "metrics.jsonl"
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not (metrics.exists() and metrics.stat().st_size):
        if process.poll() is not None:
            raise RuntimeError(f"the run ended before its first step: {process.communicate()[1].decode()[-500:]}")
        time.sleep(0.005)
    seconds = time.perf_counter() - start
    process.wait()  # the cache is complete before the next start
    return seconds
