"""McLeish et al. 2025, "Gemstones: A Model Suite for Multi-Faceted Scaling Laws" (arXiv 2502.06857).

The stored fits of L = E + A/N^alpha + B/D^beta with their objectives (mcleish7/gemstone-scaling-laws), from 4,500
L-BFGS-B starts each. Data: the tables of that repository.
"""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scalelab.laws.law import chinchilla_optimum, forms
from scalelab.laws.law.law import law_of
from scalelab.laws.law.objective import huber_log
from scalelab.laws.published import tables
from scalelab.laws.published.verdict import PaperReport, judge_minimum, make_comparison_row
from scalelab.laws.solve import optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Problem

SOURCE = "arXiv 2502.06857; stored fits of mcleish7/gemstone-scaling-laws"
VOCABULARY = 50304  # rows of the embedding; "non_embedding" leaves out its width x VOCABULARY parameters
TARGET_FLOPS = 1e23


class PublishedFit(NamedTuple):
    """One published fit: the table, what N counts, Huber's delta, the objective as printed, and the parameters."""

    table: str
    n: str
    delta: float
    objective: str
    alpha: float
    beta: float
    log_A: float
    log_B: float
    log_E: float

    @property
    def params(self) -> chinchilla_optimum.ChinchillaParams:
        """Parameters of the published law."""
        return chinchilla_optimum.ChinchillaParams(
            np.exp(self.log_E), np.exp(self.log_A), np.exp(self.log_B), self.alpha, self.beta
        )


FITS = (
    PublishedFit("hot", "total", 1e-4, "0.0002076018",
                 0.2989180518, 0.6928331414, 5.4574988414, 14.9719740349, 0.7663168139),
    PublishedFit("hot_100b+", "total", 1e-4, "0.0006923300",
                 0.2575546364, 0.5909317455, 4.8761769847, 12.6984060933, 0.6655226816),
    PublishedFit("hot_100b+", "non_embedding", 1e-4, "0.0005719375",
                 0.2442197772, 0.6099171547, 4.560218379, 13.1801176946, 0.6701923538),
    PublishedFit("hot", "non_embedding", 1e-4, "0.0001838567",
                 0.2844092028, 0.6731628979, 5.1054557426, 14.5643952293, 0.7666011695),
    PublishedFit("hot_sampled_like_chinchilla", "total", 1e-4, "0.0000225732",
                 0.2845070338, 0.4494161333, 4.9946926692, 9.8396405924, 0.7131557174),
    PublishedFit("slim_chinchilla", "total", 1e-4, "0.0000133978",
                 0.2764406077, 0.4738182992, 5.0154675479, 9.9100065846, 0.5670625496),
    PublishedFit("hot", "total", 1e-3, "0.0019816129",
                 0.2928686863, 0.712872206, 5.3613398367, 15.415994531, 0.7622636901),
    PublishedFit("hot_100b+", "total", 1e-3, "0.0065925344",
                 0.2591125694, 0.5972679073, 4.9008415415, 12.850969215, 0.6681624725),
    PublishedFit("hot_100b+", "non_embedding", 1e-3, "0.0053939495",
                 0.2423319115, 0.606170139, 4.5317449213, 13.0980322157, 0.6664134614),
    PublishedFit("hot", "non_embedding", 1e-3, "0.0017466699",
                 0.2807638315, 0.6796972223, 5.0482314178, 14.7063392872, 0.7636698366),
    PublishedFit("hot_sampled_like_chinchilla", "total", 1e-3, "0.0002173794",
                 0.275106095, 0.4580953782, 4.8385936211, 10.0267685734, 0.7095285231),
    PublishedFit("slim_chinchilla", "total", 1e-3, "0.0001204363",
                 0.2137760799, 0.5260072888, 4.0689997896, 10.9811737262, 0.4684500083),
)  # fmt: skip


def pose_published_fit(data: pathlib.Path, stored: PublishedFit) -> Problem:
    """Pose the problem that a stored fit solves."""
    lines = tables.read_paper_table(data, f"gemstones/{stored.table}.jsonl")
    N, D, loss = tables.float_columns(lines, "params_active_precise", "tokens", "final_loss")
    if stored.n == "non_embedding":
        (width,) = tables.float_columns(lines, "width")
        N = N - VOCABULARY * width
    return pose_problem(law_of(forms.chinchilla), {"N": N, "D": D}, loss, huber_log(stored.delta))


def reproduce(data: pathlib.Path, tell: Callable[[str], None]) -> PaperReport:
    """Recompute each stored objective, at the published parameters and at the minimum."""
    rows, findings = [], []
    for stored in FITS:
        fitted = pose_published_fit(data, stored)
        name = f"{stored.table}, N {stored.n}, delta {stored.delta:g}"
        recipe = f"{fitted.points} checkpoints; sum of Huber({stored.delta:g}) of log loss"
        there = fitted.value(fitted.from_params(stored.params._asdict())[None], np.ones((1, fitted.points)))[0]
        best = optimum.minimise_objective(fitted)
        rows.append(make_comparison_row(f"{name}: objective at the published point", there, stored.objective, recipe))
        rows.append(
            make_comparison_row(
                f"{name}: minimum", best.value, stored.objective, f"{recipe}, global minimum", judge_minimum
            )
        )
        if rows[-1].verdict == "published_not_global":
            findings.append(
                _finding(name, stored, chinchilla_optimum.ChinchillaParams(**best.params), 1 - best.value / there)
            )
    return PaperReport("gemstones", SOURCE, tuple(rows), tuple(findings))


def _finding(name: str, stored: PublishedFit, ours: chinchilla_optimum.ChinchillaParams, lower: float) -> str:
    (published_a, published_N), (our_a, our_N) = (
        (chinchilla_optimum.allocation_exponents(p)[0], chinchilla_optimum.optimal_allocation(p, TARGET_FLOPS).N)
        for p in (stored.params, ours)
    )
    return (
        f"{name}: the published optimum is not global: an objective {lower:.2%} lower exists, with a = {our_a:.3f} "
        f"instead of {published_a:.3f}, and {our_N / 1e9:.3g}B instead of {published_N / 1e9:.3g}B parameters at "
        f"{TARGET_FLOPS:.0e} FLOPs"
    )
