"""Published tables and synthetic studies that the tests of the laws share."""

import csv
import json

import numpy as np

from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, loss_at, optimal_allocation
from scalelab.laws.law.names import load_law
from scalelab.laws.law.objective import huber_log
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Problem
from tests.tables import table_path

QUICKSTART_LIKE = ChinchillaParams(E=1.1, A=250.0, B=350.0, alpha=0.6, beta=0.47)  # a tiny model's law: bytes, N < 1e5
BUDGETS = np.array([1.25e11, 2.5e11, 5e11, 1e12])


def published(*path: str):
    """A part of published.json."""
    part = json.loads(table_path("published.json").read_text())
    for key in path:
        part = part[key]
    return part


def hoffmann_points() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """N, D, loss of the 240 points of Besiroglu et al. 2024: without the five largest losses, D = C / 6N."""
    with table_path("chinchilla/points.csv").open() as file:
        rows = list(csv.DictReader(file))
    N, C, loss = (np.array([float(row[key]) for row in rows]) for key in ("Model Size", "Training FLOP", "loss"))
    fitted = np.argsort(loss)[:-5]
    return N[fitted], C[fitted] / (6 * N[fitted]), loss[fitted]


def study(params: ChinchillaParams, noise: float = 0.0, seed: int = 0, sizes: int = 5, budgets=BUDGETS):
    """N, D, loss of an IsoFLOP grid around each optimum, with Gaussian noise on log loss."""
    best = optimal_allocation(params, budgets)
    N = (best.N[:, None] * np.geomspace(1 / 3, 3, sizes)).ravel()
    D = np.repeat(budgets, sizes) / (6 * N)
    errors = np.random.default_rng(seed).standard_normal(len(N))
    return N, D, loss_at(params, N, D) * np.exp(noise * errors)


def posed(N, D, loss, delta: float = 1e-3) -> Problem:
    """Chinchilla's law on these points by Hoffmann's objective."""
    return pose_problem(
        load_law("chinchilla"), {"N": np.asarray(N), "D": np.asarray(D)}, np.asarray(loss), huber_log(delta)
    )
