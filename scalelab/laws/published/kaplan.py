"""Kaplan et al. 2020, "Scaling Laws for Neural Language Models" (arXiv 2001.08361).

Its runs were never published, so its constants (N without embeddings) are compared with each other, with Porian et
al. 2024, who trained in its setting again, and with Chinchilla's law if parameters and FLOPs are counted as by Kaplan
(Pearce & Song 2024, "Reconciling Kaplan and Chinchilla Scaling Laws", arXiv 2406.12907).
"""

import functools
import pathlib
from collections.abc import Callable

import numpy as np

from scalelab.laws.law import chinchilla_optimum
from scalelab.laws.law.names import LAWS
from scalelab.laws.published import besiroglu, porian, tables
from scalelab.laws.published.verdict import ComparisonRow, PaperReport, judge_consistency, make_comparison_row
from scalelab.laws.use import decision

SOURCE = "arXiv 2001.08361, eqs. 1.1 to 1.8 and appendix A; arXiv 2406.12907 for the conventions"
CONSTANTS = {  # L(N) = (N_c/N)^alpha_N and so on; PF-days of compute, tokens of data and batch
    "alpha_N": "0.076", "N_c": "8.8e13", "alpha_D": "0.095", "D_c": "5.4e13", "alpha_C": "0.057", "C_c": "1.6e7",
    "alpha_C_min": "0.050", "C_c_min": "3.1e8", "alpha_B": "0.21", "B_star": "2.1e8", "alpha_S": "0.76", "S_c": "2.1e3",
}  # fmt: skip
L_OF_N_D = {"alpha_N": 0.076, "alpha_D": 0.103, "N_c": 6.4e13, "D_c": 1.8e13}
OPTIMAL = {"N": "0.73", "B": "0.24", "S": "0.03", "D": "0.27"}  # exponents of C_min
OMEGA = 47491.0  # N_total = N + OMEGA N^(1/3): embeddings of shapes of width ~ N^(1/3) (Pearce & Song, 32k tokens)
SIZES = np.geomspace(768, 1.5e9, 200)  # Kaplan's smallest and largest N
NEAR = 0.03  # tolerance of an exponent: Kaplan's own sizes and their weights are not known


def reproduce(data: pathlib.Path, tell: Callable[[str], None]) -> PaperReport:
    """Recompute what follows from the constants, from Porian's runs, and from the count of N."""
    rows = [*_from_constants(), *_trained_again(data), *_conventions()]
    return PaperReport("kaplan", SOURCE, tuple(rows), _findings(rows))


def _from_constants() -> list[ComparisonRow]:
    alpha = {name: float(text) for name, text in CONSTANTS.items() if name.startswith("alpha")}
    joint = 1 / (1 / alpha["alpha_S"] + 1 / alpha["alpha_B"] + 1 / alpha["alpha_N"])
    recipe = "alpha_C_min / alpha of the same quantity (eqs. 1.7, 1.8), from the printed constants"
    row = functools.partial(make_comparison_row, judge=judge_consistency)
    rows = [row("alpha_C_min", joint, CONSTANTS["alpha_C_min"], "1 / (1/alpha_S + 1/alpha_B + 1/alpha_N), eq. 1.7")]
    for name in "NBS":
        ours = alpha["alpha_C_min"] / alpha[f"alpha_{name}"]
        rows.append(row(f"{name}_opt ~ C^p: p", ours, OPTIMAL[name], recipe))
    batch, steps, size = (float(OPTIMAL[name]) for name in "BSN")
    recipe = "printed exponents: D = B x S, and C = 6 N B S"
    rows.append(row("D_opt ~ C^p: p, as p of B plus p of S", batch + steps, OPTIMAL["D"], recipe))
    rows.append(row("D_opt ~ C^p: p, as 1 - p of N", 1 - size, OPTIMAL["D"], recipe))
    C = np.array([1e20, 1e22])
    N = [decision.optimal_size(LAWS["kaplan"], L_OF_N_D, c, 6.0, {})[0] for c in C]
    recipe = "L(N, D) of eq. 1.5 with its own constants, lowest where C = 6ND: alpha_D / (alpha_N + alpha_D)"
    slope = float(np.diff(np.log(N))[0] / np.diff(np.log(C))[0])
    return [*rows, row("N_opt ~ C^p: p by L(N, D)", slope, OPTIMAL["N"], recipe)]


def _trained_again(data: pathlib.Path) -> list[ComparisonRow]:
    """Rows of Porian's runs in Kaplan's setting, and with a tuned optimiser."""
    optima = tables.read_paper_table(data, "porian/optimal_pairs.csv")
    rows = []
    for experiment in porian.EXPERIMENTS:
        if experiment.param_count == "kaplan":
            _, ours = porian.weighted_exponent(porian.select_experiment(optima, experiment))
            name = f"a of Porian's runs as Kaplan's: {experiment.name}"
            rows.append(
                make_comparison_row(name, ours, experiment.weighted, porian.STORED, interval=experiment.interval)
            )
    return rows


def as_kaplan_counts(law: chinchilla_optimum.ChinchillaParams, N: np.ndarray) -> np.ndarray:
    """C = 6 N D at which each N is best, both counted without embeddings, by a law of the total count.

    With N_total = N + OMEGA N^(1/3) and s = d log N_total / d log N, the loss at fixed C = 6 N D is lowest where
    alpha A N_total^-alpha s = beta B D^-beta.
    """
    total = N + OMEGA * np.cbrt(N)
    s = (N + OMEGA * np.cbrt(N) / 3) / total
    D = (law.beta * law.B / (law.alpha * law.A * s) * total**law.alpha) ** (1 / np.asarray(law.beta))
    return 6 * N * D


def _conventions() -> list[ComparisonRow]:
    law = besiroglu.HOFFMANN["Hoffmann's unrounded"]
    C = as_kaplan_counts(law, SIZES)
    slope = float(np.polyfit(np.log(C), np.log(SIZES), 1)[0])
    recipe = (
        "Chinchilla's law, N and C = 6ND without embeddings, N_total = N + 47,491 N^(1/3); power law through the best "
        "sizes from 768 to 1.5e9; within .03"
    )
    return [
        make_comparison_row(
            "N_opt ~ C^p: p by Chinchilla's law, counted as Kaplan counts", slope, OPTIMAL["N"], recipe, tolerance=NEAR
        )
    ]


def _findings(rows: list[ComparisonRow]) -> tuple[str, ...]:
    by_name = {r.name: r for r in rows}
    law = besiroglu.HOFFMANN["Hoffmann's unrounded"]
    local = np.gradient(np.log(SIZES), np.log(as_kaplan_counts(law, SIZES)))
    return (
        f"p = 0.73 of N is a trend of its own: the printed alphas give {by_name['N_opt ~ C^p: p'].ours:.2f}, L(N, D) "
        f"gives {by_name['N_opt ~ C^p: p by L(N, D)'].ours:.3f}.",
        "Kaplan against Chinchilla is a matter of counting: without embeddings, Chinchilla's own law has p = "
        f"{rows[-1].ours:.2f} over Kaplan's sizes, locally from {local.max():.2f} to {local.min():.2f} at the largest; "
        f"with N the total it has a = {float(chinchilla_optimum.allocation_exponents(law)[0]):.2f} everywhere.",
        f"Trained again by Porian et al. with N as Kaplan counts: {rows[-4].ours:.3f} in Kaplan's setting "
        f"on RefinedWeb, {rows[-2].ours:.3f} on OpenWebText2, and {rows[-3].ours:.3f} with tuned optimiser.",
    )
