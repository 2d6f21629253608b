"""Whole `scalelab fit` commands on one core, in CPU seconds: large tables and laws of many parameters.

Each is a new process, with interpreter, imports, profiles and the printing of its report. The tables are simulated, so
that everybody times the same ones.
"""

import csv
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np

from scalelab.laws.law.names import load_law

MIB = 1024  # of the kilobytes in which Linux counts a process's memory


class LawCommand(NamedTuple):
    """A command of the table: its law, rows and resamples, its options, and the goals in seconds and GiB."""

    name: str
    law: str
    rows: int
    params: dict[str, float]
    options: tuple[str, ...]
    most_s: float
    most_gib: float = 2.0


CHINCHILLA = {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658}  # Besiroglu et al. 2024
FARSEER = {
    "a1": -0.5, "b1": -0.7, "alpha": 0.12, "a2": 0.6, "b2": -1.0, "beta": -0.1, "a3": -0.3, "b3": 0.6, "gamma": 0.17,
}  # fmt: skip
WIDTH_DEPTH = {
    "E": 1.5, "W": 20.0, "P": 1.5, "A": 300.0, "B": 1200.0, "w": 0.7, "p": 0.9, "alpha": 0.36, "beta": 0.38,
}  # fmt: skip
COMMANDS = (
    LawCommand("100,000 rows, 1,000 resamples, profiles", "chinchilla", 100_000, CHINCHILLA, (), 60.0),
    LawCommand("Farseer, 411 rows, 1,000 resamples, profiles", "farseer", 411, FARSEER, (), 60.0),
    LawCommand("Farseer, 411 rows, profiles", "farseer", 411, FARSEER, ("--bootstrap=0",), 5.0),
    LawCommand("width and depth, 220 rows, 1,000 resamples, profiles", "width_depth", 220, WIDTH_DEPTH, (), 10.0),
)
RANGES = {"N": (2e8, 6.5e9), "D": (3e9, 4e11), "width": (256.0, 4096.0), "depth": (4.0, 64.0)}
NOISE = 0.003


def measure_law_commands(names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Time each command (or those of these laws): CPU and wall seconds, and the most memory, beside its goals."""
    with tempfile.TemporaryDirectory() as folder:
        return [_measure(command, pathlib.Path(folder)) for command in COMMANDS if not names or command.law in names]


def _measure(command: LawCommand, folder: pathlib.Path) -> dict[str, Any]:
    path = folder / f"{command.law}.csv"
    write_table(path, command.law, command.params, command.rows)
    argv = [sys.executable, "-m", "scalelab", "fit", str(path), f"--law={command.law}", *command.options]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    start = time.perf_counter()
    process = subprocess.Popen(
        argv, env=os.environ | threads | {"JAX_PLATFORMS": "cpu"}, stdout=subprocess.DEVNULL, preexec_fn=_use_one_core
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(argv)} ended with status {status}")
    return {
        "name": command.name, "cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": time.perf_counter() - start,
        "peak_mib": usage.ru_maxrss / MIB, "most_s": command.most_s, "most_gib": command.most_gib,
    }  # fmt: skip


def _use_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def write_table(path: pathlib.Path, name: str, params: dict[str, float], rows: int) -> None:
    """Write a table of so many runs of a law, evenly spread in logs, with Gaussian noise on the log of the loss."""
    law, random = load_law(name), np.random.default_rng(0)
    columns = {column: np.exp(random.uniform(*np.log(RANGES[column]), rows)) for column in law.columns}
    loss = law(columns, params) * np.exp(NOISE * random.standard_normal(rows))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "loss"])
        writer.writerows(zip(*columns.values(), loss, strict=True))
