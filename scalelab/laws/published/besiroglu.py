"""Besiroglu, Erdil, Barnett & You 2024, "Chinchilla Scaling: A replication attempt" (arXiv 2404.10102).

Values come from the authors' notebook (epoch-research/analyzing-chinchilla, data_analysis.ipynb), which prints more
digits than the paper. Data: the points of Hoffmann et al. 2022, fig. 4, read off by the authors.
"""

import pathlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from scalelab.laws.law import chinchilla_optimum, forms
from scalelab.laws.law.law import law_of
from scalelab.laws.law.objective import huber_log, load_objective
from scalelab.laws.published import tables
from scalelab.laws.published.verdict import (
    ComparisonRow,
    PaperReport,
    judge_consistency,
    judge_minimum,
    make_comparison_row,
)
from scalelab.laws.solve import likelihood, optimum, refit
from scalelab.laws.solve.optimum import Optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Problem

SOURCE = "arXiv 2404.10102; notebook of epoch-research/analyzing-chinchilla"
MLE_PARAMS = {"A": "482.00572", "B": "2085.4342", "E": "1.81686", "alpha": "0.34781303", "beta": "0.36585412"}
MLE_NEGATIVE_LOG_LIKELIHOOD = "-879.77313906"
PAPER_PARAMS = {"A": "482.01", "B": "2085.43", "E": "1.8172", "alpha": "0.3478", "beta": "0.3658"}  # eq. 4 of version 2
GRID_HUBER = "1.0182740346154362e-3"  # best of 4,500 L-BFGS-B starts
STANDARD_ERRORS = {"A": "124.52232", "B": "1293.2841", "E": "0.02566", "alpha": "0.0154", "beta": "0.0206"}
FIRST_RESAMPLES = (  # A, B, E, alpha, beta
    (349.556372, 2356.248315, 1.79333, 0.328633, 0.371855),
    (487.836322, 1509.948214, 1.803583, 0.348965, 0.349989),
)
INTERVAL_95 = {
    "A": (285.214, 743.626), "B": (1042.357, 5810.344), "E": (1.769, 1.871), "alpha": (0.317, 0.373),
    "beta": (0.331, 0.415),
}  # fmt: skip
# Errors and correlations of the resamples behind those errors: E, log of A / 1e9^alpha, log of B / 2e10^beta, alpha,
# beta. At this centre of the runs the terms hardly depend on their exponents, so that few digits are enough. These are
# ours: the paper prints no correlations (tests compute them).
CENTRE = {"N": 1e9, "D": 2e10}
CENTRED_ERRORS = (0.025654, 0.061861, 0.068464, 0.015396, 0.020592)
CORRELATIONS = (
    (1.0, -0.5481, -0.5803, 0.5807, 0.6047),
    (-0.5481, 1.0, -0.3594, -0.9881, 0.3136),
    (-0.5803, -0.3594, 1.0, 0.3086, -0.9877),
    (0.5807, -0.9881, 0.3086, 1.0, -0.2724),
    (0.6047, 0.3136, -0.9877, -0.2724, 1.0),
)
EXPONENT_A, EXPONENT_A_SD, EXPONENT_A_WIDTH_80 = "0.513", "0.020", "0.051"
LOG_LIKELIHOOD = {  # (on the 240 points, on all 245)
    "fitted": ("879.77", "757.80"),
    "Hoffmann's unrounded": ("837.78", "714.43"),
    "Hoffmann's printed": ("562.25", "531.89"),
}
LIKELIHOOD_RATIO, CHI_SQUARE = "84.0", "238.4"  # of Hoffmann's law against the fitted one; five degrees of freedom
HOFFMANN = {  # Hoffmann et al. 2022: unrounded in the LaTeX source (logs of A, B, E: 6.0073404, 6.0179186, 0.5267228)
    "Hoffmann's unrounded": chinchilla_optimum.ChinchillaParams(
        np.exp(0.5267228), np.exp(6.0073404), np.exp(6.0179186), 0.33917084, 0.2849083
    ),
    "Hoffmann's printed": chinchilla_optimum.ChinchillaParams(1.69, 406.4, 410.7, 0.34, 0.28),
}
RESAMPLES, SEED, BATCH = 4000, 42, 500
LAW = law_of(forms.chinchilla)

HUBER = "240 points (all but the five largest losses), D = C / 6N; sum of Huber(1e-3) of log loss; global minimum"
LIKELIHOOD = "the same points; Huber density of log-loss residuals / sigma, delta 1e-3, sigma free: maximum likelihood"
BOOTSTRAP = (
    "4,000 resamples as numpy.random.seed(42), choice(240, 240) draws them; Huber(1e-3) minimum of each; std, "
    "percentiles"
)


class LossPoints(NamedTuple):
    """N parameters, D tokens, loss in nats per token, each [240]."""

    N: np.ndarray
    D: np.ndarray
    loss: np.ndarray


def draw_params(count: int) -> dict[str, np.ndarray]:
    """Draw parameters [count] around the published ones, normal, with the spread and correlation of the resamples."""
    point = {name: float(text) for name, text in MLE_PARAMS.items()}
    log_N, log_D = np.log(CENTRE["N"]), np.log(CENTRE["D"])
    E, alpha, beta = point["E"], point["alpha"], point["beta"]
    mean = [E, np.log(point["A"]) - alpha * log_N, np.log(point["B"]) - beta * log_D, alpha, beta]
    spread = np.array(CORRELATIONS) * np.outer(CENTRED_ERRORS, CENTRED_ERRORS)
    E, a, b, alpha, beta = np.random.default_rng(0).multivariate_normal(mean, spread, count, method="cholesky").T
    return {"E": E, "A": np.exp(a + alpha * log_N), "B": np.exp(b + beta * log_D), "alpha": alpha, "beta": beta}


def all_points(data: pathlib.Path) -> LossPoints:
    """Read Hoffmann's 245 points, in the order of the table."""
    N, C, loss = tables.float_columns(
        tables.read_paper_table(data, "chinchilla/points.csv"), "Model Size", "Training FLOP", "loss"
    )
    return LossPoints(N, C / (6 * N), loss)


def fitted_points(data: pathlib.Path) -> LossPoints:
    """Read the 240 points that the authors fit: all but the five largest losses."""
    points = all_points(data)
    mask = points.loss < np.sort(points.loss)[-5]
    return LossPoints(*(column[mask] for column in points))


def huber_problem(points: LossPoints) -> Problem:
    """Pose Chinchilla's law with Hoffmann's objective on these points."""
    return pose_problem(LAW, {"N": points.N, "D": points.D}, points.loss, huber_log())


def resample_multiplicities(count: int, size: int = 240) -> np.ndarray:
    """Multiplicities [count, size]: how often each of the authors' first resamples holds each point."""
    random = np.random.RandomState(SEED)
    return np.stack([np.bincount(random.choice(size, size, replace=True), minlength=size) for _ in range(count)]) * 1.0


def refit_resamples(posed: Problem, best: Optimum, count: int, tell: Callable[[str], None]) -> dict[str, np.ndarray]:
    """Refit `count` resamples: parameters, each [<= count], of those that converge (all of them do)."""
    weights, batches = resample_multiplicities(count, posed.points), []
    for first in range(0, count, BATCH):
        solutions = refit.refit_weighted(posed, weights[first : first + BATCH], best.x)
        batches.append(solutions.x[solutions.converged])
        tell(f"besiroglu: {min(first + BATCH, count)} of {count} resamples refitted")
    return posed.to_params(np.concatenate(batches))


def reproduce(data: pathlib.Path, tell: Callable[[str], None], resamples: int = RESAMPLES) -> PaperReport:
    """Recompute point estimates, minimum, standard errors and intervals, exponent, likelihoods and tests."""
    points = fitted_points(data)
    posed = huber_problem(points)
    best = optimum.minimise_objective(posed)
    _, likely = likelihood.fit_scale(LAW, posed.columns, posed.target, load_objective("mle"))
    spread = refit_resamples(posed, best, resamples, tell)
    rows = [make_comparison_row("minimum of the Huber objective", best.value, GRID_HUBER, HUBER, judge_minimum)]
    rows += [
        make_comparison_row(f"{name}, maximum likelihood", likely.params[name], text, LIKELIHOOD)
        for name, text in MLE_PARAMS.items()
    ]
    rows.append(make_comparison_row("-log likelihood", likely.value, MLE_NEGATIVE_LOG_LIKELIHOOD, LIKELIHOOD))
    rows += _paper_rows(likely) + _spread_rows(spread) + _exponent_rows(likely, spread)
    rows += likelihood_rows(data, likely) + _test_rows(likely, spread, points)
    used = len(spread["alpha"])
    return PaperReport("besiroglu", SOURCE, tuple(rows), _findings(best, likely, used, resamples))


def _paper_rows(likely: Optimum) -> list[ComparisonRow]:
    """Rows of equation 4 of the paper, beside the estimate that it claims to print."""
    recipe = "the same estimate, as the paper's equation 4 prints it"
    return [
        make_comparison_row(f"{name}, eq. 4", likely.params[name], text, recipe, judge_consistency)
        for name, text in PAPER_PARAMS.items()
    ]


def _spread_rows(spread: Mapping[str, np.ndarray]) -> list[ComparisonRow]:
    """Rows of standard errors and of the ends of 95 % intervals, each within 1 % of its value."""
    rows = []
    for name, text in STANDARD_ERRORS.items():
        ours = float(np.std(spread[name]))
        rows.append(
            make_comparison_row(f"standard error of {name}", ours, text, BOOTSTRAP, tolerance=0.01 * float(text))
        )
    for name, ends in INTERVAL_95.items():
        for end, share, value in zip(("low", "high"), (0.025, 0.975), ends, strict=True):
            ours = float(np.quantile(spread[name], share))
            rows.append(
                make_comparison_row(
                    f"95 % interval of {name}, {end}", ours, str(value), BOOTSTRAP, tolerance=0.01 * value
                )
            )
    return rows


def _exponent_rows(likely: Optimum, spread: Mapping[str, np.ndarray]) -> list[ComparisonRow]:
    point, _ = chinchilla_optimum.allocation_exponents(chinchilla_optimum.ChinchillaParams(**likely.params))
    a = spread["beta"] / (spread["alpha"] + spread["beta"])
    width = float(np.diff(np.quantile(a, [0.1, 0.9]))[0])
    return [
        make_comparison_row("a of N_opt ~ C^a", float(point), EXPONENT_A, LIKELIHOOD),
        make_comparison_row("standard error of a", float(np.std(a)), EXPONENT_A_SD, BOOTSTRAP),
        make_comparison_row("width of the 80 % interval of a", width, EXPONENT_A_WIDTH_80, BOOTSTRAP),
    ]


def log_likelihood(params: Mapping[str, float], points: LossPoints) -> float:
    """Log likelihood of a law on these points, with the best sigma for that law."""
    residuals = np.log(points.loss) - np.log(LAW({"N": points.N, "D": points.D}, params))
    sigma = likelihood.best_sigma(residuals, 1e-3)
    return -likelihood.negative_log_likelihood(residuals, sigma, 1e-3)


def likelihood_rows(data: pathlib.Path, likely: Optimum) -> list[ComparisonRow]:
    """Rows of the log likelihoods of three laws, on the 240 fitted points and on all 245."""
    laws: Mapping[str, Mapping[str, float]] = {"fitted": likely.params} | {n: p._asdict() for n, p in HOFFMANN.items()}
    recipe = "log likelihood of a given law on the points, sigma at its best for that law"
    rows = []
    for place, points in enumerate((fitted_points(data), all_points(data))):
        for name, params in laws.items():
            label = f"log likelihood of {len(points.N)} points, {name} law"
            rows.append(make_comparison_row(label, log_likelihood(params, points), LOG_LIKELIHOOD[name][place], recipe))
    return rows


def _test_rows(likely: Optimum, spread: Mapping[str, np.ndarray], points: LossPoints) -> list[ComparisonRow]:
    """Rows of the two tests of whether Hoffmann's law could be the fitted one."""
    theirs = HOFFMANN["Hoffmann's unrounded"]._asdict()
    ratio = 2 * (log_likelihood(likely.params, points) - log_likelihood(theirs, points))
    apart = _log_params(likely.params) - _log_params(theirs)
    chi_square = float(apart @ np.linalg.solve(np.cov(_log_params(spread)), apart))
    recipe = "distance of the two laws (logs of A, B, E) by the inverse covariance of the resamples"
    return [
        make_comparison_row(
            "likelihood ratio statistic", ratio, LIKELIHOOD_RATIO, "twice the difference of log likelihoods, 240 points"
        ),
        make_comparison_row("chi-square statistic", chi_square, CHI_SQUARE, recipe, tolerance=0.01 * float(CHI_SQUARE)),
    ]


def _log_params(params: Mapping[str, float | np.ndarray]) -> np.ndarray:
    return np.stack([np.log(params[n]) if n in "ABE" else np.asarray(params[n]) for n in STANDARD_ERRORS])


def _findings(best: Optimum, likely: Optimum, used: int, resamples: int) -> tuple[str, ...]:
    certificate = best.certificate
    return (
        f"The Huber minimum is {best.value:.13e} ({certificate.agree} of {certificate.starts} starts agree); the "
        f"notebook's best of 4,500 starts stopped {float(GRID_HUBER) / best.value - 1:.1e} above it.",
        f"Equation 4 prints E = {PAPER_PARAMS['E']}, the E of the Huber minimum ({best.params['E']:.4f}), among the "
        f"maximum-likelihood values of the others, whose own E is {likely.params['E']:.4f}.",
        "The published standard errors are those of the Huber minimum over resamples, not of the likelihood that gave "
        f"the point estimates; {used} of {resamples} resamples converged.",
    )
