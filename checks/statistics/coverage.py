"""Check that 90 % intervals hold the truth in 90 % of simulated studies of a known law, for every kind of interval.

    python -m checks.statistics.coverage [--workdir=runs/coverage] [--quick] [--json[=PATH]]

200 studies of each design. Every study is fitted as by `scalelab fit` (huber_log, delta 1e-3), and each interval either
holds the truth or not. Writes `checks/results/coverage.json` and `.md`; --quick runs 40 studies and writes into the
workdir instead. About half an hour on one core. Run it again to resume: each study is stored when it ends.

    python -m checks.statistics.coverage --quick
"""

import dataclasses
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import binom, qmc

from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import folder_path
from scalelab.experiments.shared import publish_result
from scalelab.laws.law import chinchilla_optimum
from scalelab.laws.law.names import load_law
from scalelab.laws.law.objective import huber_log
from scalelab.laws.read import groups
from scalelab.laws.solve import optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.solve.problem import Problem
from scalelab.laws.trust import dependence, misfit, profile, uncertainty
from scalelab.laws.use import decision
from scalelab.record import records
from scalelab.testing.law import COLUMN_RANGES

STUDIES, QUICK_STUDIES, RESAMPLES, LEVEL = 200, 40, 300, 0.9
COVERAGE_BAND = (0.85, 0.95)
NO_INTERVALS = ("law at the new run", "the form passes its test", "loss of one new run, without misfit")
CHINCHILLA_TRUTH = {
    "E": 1.1,
    "A": 250.0,
    "B": 350.0,
    "alpha": 0.6,
    "beta": 0.47,
}  # like the quickstart's: bytes, N below 1e6
TARGET_FACTOR = 4.0  # the decision and the new run are at this multiple of the largest budget


@dataclasses.dataclass(frozen=True)
class StudyArm:
    """A design and its noise: relative standard deviation of a loss, Gaussian or Laplace (heavier tails).

    `sizes`: number of sizes per budget; 0: `budgets` rows scattered over plausible values of the law's columns.
    `groups`: how many runs of how many checkpoints (or, where `seeds`, settings of how many seeds) the rows are; each
    group has an error of its own, of standard deviation `group_noise`. `truth`: the law that made the data, where it is
    not the one that is fitted; then only the new run is scored.
    """

    name: str
    budgets: int
    sizes: int
    noise: float
    tails: str
    law: str = "chinchilla"
    groups: tuple[int, int] | None = None
    group_noise: float = 0.005
    seeds: bool = False
    truth: str = ""


def _group_arm(name: str, groups: int, each: int, **others: Any) -> StudyArm:
    return StudyArm(name, 0, 0, 0.001, "gaussian", groups=(groups, each), **others)


STUDY_ARMS = (
    StudyArm("4 budgets x 5 sizes", 4, 5, 0.005, "gaussian"),
    StudyArm("5 budgets x 5 sizes", 5, 5, 0.005, "laplace"),
    StudyArm("8 budgets x 9 sizes", 8, 9, 0.005, "gaussian"),
    StudyArm("24 budgets, saturating", 24, 1, 0.005, "gaussian", "saturating"),
    StudyArm("48 rows, kaplan", 48, 0, 0.005, "gaussian", "kaplan"),
    StudyArm("48 rows, overtraining", 48, 0, 0.005, "gaussian", "overtraining"),
    _group_arm("12 runs x 8 checkpoints", 12, 8),
    _group_arm("20 runs x 10 checkpoints", 20, 10),
    _group_arm("5 runs x 40 checkpoints", 5, 40),
    _group_arm("16 settings x 4 seeds", 16, 4, seeds=True),
    _group_arm("12 runs x 8 checkpoints, nothing shared", 12, 8, group_noise=0.0),
    StudyArm("8 budgets x 9 sizes, a wrong law", 8, 9, 0.002, "gaussian", truth="chinchilla_gamma"),
)
TOKENS_PER_PARAM = (20, 60, 10, 120, 40)  # at the ends of runs, by turns
TRUTHS = {
    "chinchilla": CHINCHILLA_TRUTH,
    "chinchilla_gamma": {"E": 0.9, "A": 8.0, "B": 90.0, "alpha": 0.25, "beta": 0.36, "gamma": 2.0},
    "saturating": {"E": 1.5, "A": 60.0, "alpha": 0.155},
    "kaplan": {"N_c": 6.4e13, "D_c": 1.8e13, "alpha_N": 0.076, "alpha_D": 0.103},  # Kaplan et al. 2020, Table 2
    "overtraining": {"E": 1.51, "a": 141.3, "b": 189.5, "eta": 0.1212},  # Gadre et al. 2024, C4
}


def design_columns(arm: StudyArm) -> dict[str, np.ndarray]:
    """Columns of the design: sizes within a factor of three around each budget's best, budgets a factor of two apart.

    A scattered design is a Sobol set over COLUMN_RANGES.
    """
    if arm.groups:
        return _grouped_columns(arm.seeds, *arm.groups)
    if not arm.sizes:
        columns = load_law(arm.law).columns
        unit = qmc.Sobol(len(columns), seed=2).random(64)[: arm.budgets]
        ends = {name: COLUMN_RANGES[name] for name in columns}
        return {name: low * (high / low) ** unit[:, i] for i, (name, (low, high)) in enumerate(ends.items())}
    C = 1.25e11 * 2.0 ** np.arange(arm.budgets)
    best = chinchilla_optimum.optimal_allocation(chinchilla_optimum.ChinchillaParams(**CHINCHILLA_TRUTH), C)
    N = (best.N[:, None] * np.geomspace(1 / 3, 3, arm.sizes)).ravel() if arm.sizes > 1 else best.N
    C = np.repeat(C, arm.sizes)
    return {"N": N, "D": C / (6 * N), "C": C}


def _grouped_columns(seeds: bool, groups: int, each: int) -> dict[str, np.ndarray]:
    """Columns of runs with evenly spaced checkpoints, or of a square grid of settings; `run` labels the groups."""
    if seeds:
        side = int(np.sqrt(groups))
        N, D = (grid.ravel() for grid in np.meshgrid(np.geomspace(3e4, 1e6, side), np.geomspace(3e6, 1e8, side)))
        N, D = np.repeat(N, each), np.repeat(D, each)
    else:
        sizes = np.geomspace(3e4, 2e6, groups)
        ends = sizes * np.resize(TOKENS_PER_PARAM, groups)
        N, D = np.repeat(sizes, each), np.outer(ends, np.linspace(1 / each, 1, each)).ravel()
    own = {"seed": np.tile(np.arange(each), groups)} if seeds else {"run": np.repeat(np.arange(groups), each)}
    return {"N": N, "D": D, "C": 6 * N * D, **own}


def simulate_study(arm: StudyArm, seed: int) -> dict[str, bool]:
    """Simulate one study: {interval: whether it holds the truth}."""
    law, true_law, truth = load_law(arm.law), load_law(arm.truth or arm.law), TRUTHS[arm.truth or arm.law]
    table, random = design_columns(arm), np.random.default_rng(seed)
    rows_by = groups.find_groups(table, law)
    columns = {name: table[name] for name in law.columns}
    posed = pose_problem(law, columns, true_law(columns, truth) * np.exp(_errors(arm, random, columns)), huber_log())
    best = optimum.minimise_objective(posed)
    shared = dependence.estimate_dependence(posed, best, np.asarray(rows_by.labels)) if rows_by else None
    boot, tested, _ = misfit.resample_fit(posed, best, RESAMPLES, seed, shared)
    assert boot  # RESAMPLES is not 0
    inside = {} if arm.truth else _score_params(posed, best, boot, shared, truth)
    run = {name: TARGET_FACTOR * values.max() for name, values in table.items() if name not in ("run", "seed")}
    if arm.law == "chinchilla":
        decided = decision.decide_allocation(posed, best, boot, run["C"], level=LEVEL)
        run |= {"N": decided.N.value, "D": decided.D.value}
        if not arm.truth:
            optimal = chinchilla_optimum.optimal_allocation(chinchilla_optimum.ChinchillaParams(**truth), run["C"])
            inside["N* decision"] = decided.N.low <= optimal.N <= decided.N.high
            inside["D* decision"] = decided.D.low <= optimal.D <= decided.D.high
    true_loss = float(true_law(run, truth))
    measured = true_loss * float(np.exp(_new_error(arm, random)))
    prediction = uncertainty.predict_run(posed, best, boot, run, LEVEL)
    inside["loss of one new run"] = prediction.low <= measured <= prediction.high
    inside["law at the new run"] = prediction.fit_low <= true_loss <= prediction.fit_high
    inside["the form passes its test"] = not (tested and tested.fails)
    right = dataclasses.replace(boot, misfit=None, params=boot.sampled)
    alone = uncertainty.predict_run(posed, best, right, run, LEVEL)
    inside["loss of one new run, without misfit"] = alone.low <= measured <= alone.high
    return {name: bool(holds) for name, holds in inside.items()}


def _errors(arm: StudyArm, random: np.random.Generator, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Relative errors of the rows, those of groups included."""
    rows = len(next(iter(columns.values())))
    error = arm.noise * _draw(arm, random, rows)
    return (
        error + np.repeat(arm.group_noise * _draw(arm, random, arm.groups[0]), arm.groups[1]) if arm.groups else error
    )


def _new_error(arm: StudyArm, random: np.random.Generator) -> np.ndarray:
    """The relative error of one new run."""
    error = arm.noise * _draw(arm, random)
    return error + arm.group_noise * _draw(arm, random) if arm.groups else error


def _draw(arm: StudyArm, random: np.random.Generator, size: int | None = None) -> np.ndarray:
    if arm.tails == "laplace":
        return np.asarray(random.laplace(size=size)) / np.sqrt(2)
    return np.asarray(random.standard_normal(size))


def _score_params(
    posed: Problem,
    best: optimum.Optimum,
    boot: uncertainty.Bootstrap,
    shared: dependence.Dependence | None,
    truth: Mapping[str, float],
) -> dict[str, bool]:
    """Whether the intervals of each parameter hold it, by method."""
    inside = {}
    profiles = profile.profile_params(posed, best, LEVEL, dependence=shared)
    for name, intervals in uncertainty.param_intervals(boot, best.params, LEVEL).items():
        ends = {"percentile": intervals["percentile"], "bca": intervals["bca"], "profile": profiles[name].interval}
        for method, (low, high) in ends.items():
            inside[f"{name} {method}"] = (low is None or low <= truth[name]) and (high is None or truth[name] <= high)
    return inside


def interval_coverage(arm: StudyArm, studies: int, folder: pathlib.Path) -> dict[str, float]:
    """{interval: share of studies whose interval holds the truth}; finished studies are read from the folder."""
    path = folder / f"{arm.name.replace(' ', '-').replace(',', '')}.jsonl"
    done = records.read_json_lines(path, damaged=[])
    for seed in range(len(done), studies):
        done.append(simulate_study(arm, seed))
        records.append_json_lines(path, done[-1:])
        if (seed + 1) % 20 == 0:
            print(f"{arm.name}: {seed + 1} of {studies}", file=sys.stderr, flush=True)
    return {name: float(np.mean([row[name] for row in done[:studies]])) for name in done[0]}


def describe_coverage(share: float) -> str:
    """Whether a share is inside COVERAGE_BAND, or on which side of it."""
    if COVERAGE_BAND[0] <= share <= COVERAGE_BAND[1]:
        return "covers"
    return "too narrow" if share < COVERAGE_BAND[0] else "wider than needed"


def format_page(result: dict[str, Any]) -> str:
    """Format the table as Markdown."""
    arms = list(result["coverage"])
    low, high = binom.interval(0.99, result["studies"], LEVEL)
    names = list(dict.fromkeys(name for arm in arms for name in result["coverage"][arm]))
    lines = [
        "# Coverage of 90 % intervals",
        "",
        f"`{result['command']}`, {result['date']}, {result['machine']}.",
        "",
        f"{result['studies']} simulated studies a column, {RESAMPLES} resamples each. Noise is "
        f"{STUDY_ARMS[0].noise:.1%} of the loss; of runs with checkpoints (settings with seeds) so much a run, and "
        "0.1% a checkpoint; 0.2% where the law is wrong (made by chinchilla_gamma, fitted by chinchilla). An interval "
        f"covers where {COVERAGE_BAND[0]:.0%} to "
        f"{COVERAGE_BAND[1]:.0%} of studies have the truth inside; the counts of a true 90 % interval lie between "
        f"{low / result['studies']:.1%} and {high / result['studies']:.1%} (99 % of the time). `law at the new run` "
        "is the parameters' part alone: it is not an interval for a run. `the form passes its test`: share of studies; "
        "`without misfit`: what the interval would hold if the law were taken to be right.",
        "",
        "| interval | " + " | ".join(f"{arm.name}, {arm.tails}" for arm in STUDY_ARMS) + " |",
        "|---" * (len(arms) + 1) + "|",
    ]
    for name in names:
        cells = []
        for arm in arms:
            share = result["coverage"][arm].get(name)
            coverage = "covers" if share is None or name in NO_INTERVALS else describe_coverage(share)
            cells.append("" if share is None else f"{share:.1%}" + ("" if coverage == "covers" else f" ({coverage})"))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def main(argv: Sequence[str]) -> int:
    """Run the study; exit code 0, or 2 for bad input."""
    return guarded("coverage", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("statistics.coverage", __doc__)
    parser.add_argument(
        "--workdir", default="runs/coverage", type=folder_path, metavar="DIR", help="where finished studies are stored"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STUDIES} studies a design")
    options = parser.parse_args(argv)
    folder = options.workdir
    folder.mkdir(parents=True, exist_ok=True)
    studies = QUICK_STUDIES if options.quick else STUDIES
    coverage = {arm.name: interval_coverage(arm, studies, folder) for arm in STUDY_ARMS}
    result = result_header("statistics.coverage", argv) | {  # with the seconds that the studies took
        "studies": studies,
        "resamples": RESAMPLES,
        "arms": [dataclasses.asdict(arm) for arm in STUDY_ARMS],
        "coverage": coverage,
    }
    place = folder if options.quick else RESULTS
    return publish_result(place, "coverage", result, format_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
