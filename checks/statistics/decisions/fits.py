"""Universes for `scalelab fit FILE`: tables of runs, and the truth that made them.

A universe is an entry of `open/fits.json` (or of the sealed half). The true loss of N parameters and D tokens is
(E + (A/N^alpha + B/D^beta)^gamma) exp(bend); C = 6 N D. Errors are relative: of each row, and shared by a run's rows.
"""

import csv
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

Universe = Mapping[str, Any]
BENDS = {  # of decades from a centre, `u` in N and `v` in D
    "wave in N": lambda u, v: np.sin(2 * np.pi * u / 2.5),
    "wave in D": lambda u, v: np.sin(2 * np.pi * v / 2.5),
    "bowl in D/N": lambda u, v: (v - u) ** 2,
    "bowl in N": lambda u, v: u**2,
    "knee in D": lambda u, v: np.maximum(0.0, v),
}


def true_loss(universe: Universe, N: np.ndarray | float, D: np.ndarray | float) -> np.ndarray:
    """The loss without noise."""
    law = universe["truth"]
    reducible = (law["A"] / N ** law["alpha"] + law["B"] / D ** law["beta"]) ** law.get("gamma", 1.0)
    return np.asarray((law["E"] + reducible) * np.exp(_bend(universe, N, D)))


def _bend(universe: Universe, N: np.ndarray | float, D: np.ndarray | float) -> np.ndarray | float:
    bend = universe.get("bend")
    if not bend:
        return 0.0
    u, v = np.log10(np.asarray(N) / bend["centre"][0]), np.log10(np.asarray(D) / bend["centre"][1])
    return np.asarray(bend["size"] * BENDS[bend["shape"]](u, v))


def true_optimum(universe: Universe, C: float) -> tuple[float, float]:
    """N and D of the lowest true loss where C = 6 N D."""
    loss = lambda log_N: float(true_loss(universe, math.exp(log_N), C / (6 * math.exp(log_N))))  # noqa: E731
    grid = np.linspace(math.log(math.sqrt(C / 6)) - 6, math.log(math.sqrt(C / 6)) + 6, 600)
    lowest = grid[int(np.argmin([loss(x) for x in grid]))]
    best = minimize_scalar(loss, bounds=(lowest - 0.05, lowest + 0.05), method="bounded", options={"xatol": 1e-9})
    return math.exp(best.x), C / (6 * math.exp(best.x))


def design_columns(universe: Universe) -> dict[str, np.ndarray]:
    """N and D of the rows, and the number of each row's run.

    `isoflop`: budgets (first, factor, count) and sizes (count, factor around the best of the law without its bend).
    `runs`: sizes (first, factor, count), tokens a parameter by turns, checkpoints a run.
    """
    if "isoflop" in universe:
        (first, factor, count), (sizes, span) = universe["isoflop"]
        straight = {key: value for key, value in universe.items() if key != "bend"}
        C = first * factor ** np.arange(count)
        best = np.array([true_optimum(straight, float(c))[0] for c in C])
        N = (best[:, None] * np.geomspace(1 / span, span, sizes)).ravel()
        D = np.repeat(C, sizes) / (6 * N)
        return {"N": N, "D": D, "run": np.arange(len(N))}
    (first, factor, count), ratios, checkpoints = universe["runs"]
    sizes = first * factor ** np.arange(count)
    ends = sizes * np.resize(ratios, count)
    D = np.outer(ends, np.arange(1, checkpoints + 1) / checkpoints)
    return {"N": np.repeat(sizes, checkpoints), "D": D.ravel(), "run": np.repeat(np.arange(count), checkpoints)}


def simulate_columns(universe: Universe, half: int, study: int) -> dict[str, np.ndarray]:
    """The columns of one study, N and D to whole numbers; `half` and `study` are its seeds."""
    random = np.random.default_rng([half, universe["number"], study])
    columns = design_columns(universe)
    N, D = np.round(columns["N"]), np.round(columns["D"])
    errors = row_noise(universe, N * D) * _draw(universe, random, len(N))
    runs = universe.get("run_noise", 0.0) * _draw(universe, random, int(columns["run"].max()) + 1)
    return {
        "N": N,
        "D": D,
        "run": columns["run"],
        "loss": true_loss(universe, N, D) * np.exp(errors + runs[columns["run"]]),
    }


def row_noise(universe: Universe, compute: np.ndarray) -> np.ndarray:
    """The standard deviation of each row: one value, or from the least compute's to the most's on a line in logs."""
    low, high = np.broadcast_to(universe["noise"], 2)
    position = np.log(compute / compute.min()) / max(np.log(compute.max() / compute.min()), 1e-9)
    return np.asarray(low * (high / low) ** position)


def _draw(universe: Universe, random: np.random.Generator, size: int) -> np.ndarray:
    if universe.get("tails") == "laplace":
        return np.asarray(random.laplace(size=size)) / math.sqrt(2)
    return np.asarray(random.standard_normal(size))


def measured_loss(universe: Universe, half: int, study: int, N: float, D: float, noise: float) -> float:
    """The loss of one new run, which scatters by `noise` and by what a run's rows share."""
    random = np.random.default_rng([half, universe["number"], study, 1])
    scatter = math.hypot(noise, universe.get("run_noise", 0.0))
    return float(true_loss(universe, N, D)) * math.exp(scatter * random.standard_normal())


def write_table(universe: Universe, columns: Mapping[str, np.ndarray], path: pathlib.Path) -> pathlib.Path:
    """Write a study as CSV: N, D, loss, and the run's name where the universe's rows say it (`named`)."""
    named = universe.get("named")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*([named] if named else []), "N", "D", "loss"])
        for N, D, run, loss in zip(*(columns[name] for name in ("N", "D", "run", "loss")), strict=True):
            writer.writerow([*([f"run-{run:02d}"] if named else []), int(N), int(D), f"{loss:.6f}"])
    return path
