"""Fits and their resamples beside scipy's, on one core, in CPU seconds: the usual recipe, timed in the same run.

The reference is Hoffmann's (arXiv 2203.15556, sec. D.3) as Besiroglu et al. 2024 run it: L-BFGS-B with finite
differences on the summed Huber loss of log-sum-exp, from a grid of 4,500 starts; each bootstrap resample from one
start, the optimum.
"""

import csv
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize

from scalelab.laws.law.names import load_law
from scalelab.laws.law.objective import huber_log
from scalelab.laws.solve import optimum, refit
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Problem

POINTS = pathlib.Path(__file__).resolve().parents[4] / "shared" / "data" / "chinchilla" / "points.csv"
HOFFMANN = {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658}  # Besiroglu et al. 2024
GRID = {
    "log A": (0, 5, 10, 15, 20, 25), "log B": (0, 5, 10, 15, 20, 25), "log E": (-1, -0.5, 0, 0.5, 1),
    "alpha": (0, 0.5, 1, 1.5, 2), "beta": (0, 0.5, 1, 1.5, 2),
}  # fmt: skip
STARTS, RESAMPLES = 100, 200  # sampled of the grid's 4,500 and of 4,000 resamples; the whole is extrapolated
ALL_STARTS, ALL_RESAMPLES = 4500, 4000
DELTA = 1e-3
TIGHT_OPTIONS = {
    "ftol": 1e-14,
    "gtol": 1e-9,
    "maxiter": 2000,
    "maxfun": 20000,
}  # scipy's defaults stop where the step is 2e-9
FIRST_FIT_CODE = """
import time
import numpy as np
from scalelab.laws.fits.fitting import fit_chinchilla
N = np.repeat(np.geomspace(1e7, 1e10, 16), 15)
D = np.tile(np.geomspace(1e8, 1e12, 15), 16)
fit_chinchilla(N, D, 1.8 + 480 / N**0.35 + 2000 / D**0.37)
print(time.process_time())
"""


def load_points() -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """(N, D, loss, source) of Besiroglu's 240 points; without their file, of as many points from their law."""
    if POINTS.exists():
        with POINTS.open() as file:
            rows = list(csv.DictReader(file))
        N, C, loss = (np.array([float(row[key]) for row in rows]) for key in ("Model Size", "Training FLOP", "loss"))
        usable = np.argsort(loss)[:-5]
        return N[usable], C[usable] / (6 * N[usable]), loss[usable], "the 240 points of Besiroglu et al. 2024"
    random = np.random.default_rng(0)
    N, D = np.exp(random.uniform(np.log([5e7, 1e9]), np.log([1.6e10, 3e11]), (240, 2))).T
    law = load_law("chinchilla")
    loss = law({"N": N, "D": D}, HOFFMANN) * np.exp(0.005 * random.standard_normal(240))
    return N, D, loss, "240 synthetic points of Besiroglu's law, .5 % noise (the digitised ones are not here)"


def huber_sum(theta: np.ndarray, log_n: np.ndarray, log_d: np.ndarray, log_y: np.ndarray, weights: np.ndarray) -> float:
    """Hoffmann's objective of theta = (log A, log B, log E, alpha, beta).

    Log-sum-exp is written out: scipy's `logsumexp` would make this reference four times slower.
    """
    a, b, e, alpha, beta = theta
    first, second = a - alpha * log_n, b - beta * log_d
    top = np.maximum(np.maximum(first, second), e)
    size = np.abs(top + np.log(np.exp(first - top) + np.exp(second - top) + np.exp(e - top)) - log_y)
    return float(np.sum(weights * np.where(size <= DELTA, 0.5 * size**2, DELTA * (size - 0.5 * DELTA))))


def time_cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """(CPU seconds of this process, result)."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def median_cpu_s(work: Callable[[], Any], rounds: int) -> float:
    """The median CPU seconds of `rounds` calls, after one that is not timed."""
    work()
    return float(np.median([time_cpu(work)[0] for _ in range(rounds)]))


def pose_fit(N: np.ndarray, D: np.ndarray, loss: np.ndarray) -> Problem:
    """The same problem as scalelab poses it."""
    return pose_problem(load_law("chinchilla"), {"N": N, "D": D}, loss, huber_log(DELTA))


def grid_reference(logs: tuple[np.ndarray, ...]) -> tuple[float, float]:
    """(CPU seconds of all 4,500 starts, from a sample; the lowest objective of the sample)."""
    starts = np.array(list(itertools.product(*GRID.values())), float)
    assert len(starts) == ALL_STARTS
    sample = starts[np.random.default_rng(0).choice(ALL_STARTS, STARTS, replace=False)]
    ones = np.ones(len(logs[0]))
    seconds, results = time_cpu(
        lambda: [minimize(huber_sum, s, args=(*logs, ones), method="L-BFGS-B").fun for s in sample]
    )
    return seconds * ALL_STARTS / STARTS, min(results)


def resample_reference(
    logs: tuple[np.ndarray, ...], warm: np.ndarray, draws: np.ndarray, **options: float
) -> tuple[float, np.ndarray]:
    """One L-BFGS-B from the optimum per resample.

    Returns (CPU seconds of 4,000 resamples, from a sample; the objective of each sampled one).
    """
    seconds, results = time_cpu(
        lambda: [minimize(huber_sum, warm, (*logs, draw), "L-BFGS-B", options=options).fun for draw in draws]
    )
    return seconds * ALL_RESAMPLES / len(draws), np.array(results)


def measure_laws(rounds: int) -> dict[str, Any]:
    """Every figure of the table, measured in a process of one core and one thread.

    Threads are counted when numpy is first imported, so it takes a new process; with more BLAS threads than cores,
    scipy's small matrices would be twenty times slower.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "checks.speed.benchmarks.laws", str(rounds)]
    done = subprocess.run(command, env=os.environ | threads, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def _measure(rounds: int) -> dict[str, Any]:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    N, D, loss, source = load_points()
    fit = pose_fit(N, D, loss)
    best = optimum.minimise_objective(fit)
    logs = np.log(N), np.log(D), np.log(loss)
    draws = np.random.default_rng(0).multinomial(len(N), np.full(len(N), 1 / len(N)), ALL_RESAMPLES).astype(float)
    p = best.params
    theta = np.array([np.log(p["A"]), np.log(p["B"]), np.log(p["E"]), p["alpha"], p["beta"]])
    grid_s, grid_best = grid_reference(logs)
    fit_s = median_cpu_s(lambda: optimum.minimise_objective(pose_fit(N, D, loss)), max(5, 3 * rounds))
    boot_s, boot = time_cpu(lambda: refit.refit_weighted(fit, draws, best.x))
    result = {
        "source": source, "sampled_starts": STARTS, "sampled_resamples": RESAMPLES,
        "fit_s": fit_s, "grid_s": grid_s, "fit_ratio": grid_s / fit_s, "objective": best.value,
        "grid_objective": grid_best,
        "bootstrap_s": boot_s, "resamples_converged": int(boot.converged.sum()),
        "spread_alpha": float(np.std(boot.x[:, 3])),
    }  # fmt: skip
    for name, options in {"scipy": {}, "tight": TIGHT_OPTIONS}.items():
        seconds, reference = resample_reference(logs, theta, draws[:RESAMPLES], **options)
        excess = boot.objective[:RESAMPLES] / reference - 1
        result |= {
            f"{name}_bootstrap_s": seconds,
            f"{name}_ratio": seconds / boot_s,
            f"{name}_highest": float(excess.max()),  # of ours over theirs: at most 1e-8
            f"{name}_median_excess": float(np.median(reference / boot.objective[:RESAMPLES]) - 1),
        }
    return result | {"growth": measure_growth(N, D, loss, draws), "fresh_s": measure_first_fit()}


def measure_growth(N: np.ndarray, D: np.ndarray, loss: np.ndarray, draws: np.ndarray) -> dict[str, float]:
    """CPU seconds of 400 resamples, and of ten times the resamples or the rows as multiples of that."""
    random = np.random.default_rng(1)
    tiled = [np.tile(column, 10) for column in (N, D)]
    noisy = np.tile(loss, 10) * np.exp(0.002 * random.standard_normal(10 * len(N)))
    long = random.multinomial(10 * len(N), np.full(10 * len(N), 1 / (10 * len(N))), 400).astype(float)
    plain, wide = pose_fit(N, D, loss), pose_fit(*tiled, noisy)
    x, wide_x = optimum.minimise_objective(plain).x, optimum.minimise_objective(wide).x
    baseline = median_cpu_s(lambda: refit.refit_weighted(plain, draws[:400], x), 3)
    return {
        "resamples_10x": median_cpu_s(lambda: refit.refit_weighted(plain, draws, x), 1) / baseline,
        "rows_10x": median_cpu_s(lambda: refit.refit_weighted(wide, long, wide_x), 1) / baseline,
        "fit_rows_10x": median_cpu_s(lambda: optimum.minimise_objective(wide), 3)
        / median_cpu_s(lambda: optimum.minimise_objective(plain), 5),
    }


def measure_first_fit() -> float:
    """CPU seconds of a first fit of 240 points in a new process, with interpreter, imports and compilation."""
    done = subprocess.run([sys.executable, "-c", FIRST_FIT_CODE], capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[1]))))
