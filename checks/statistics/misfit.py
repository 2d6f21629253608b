"""Score intervals that carry a law's misfit on simulated tables whose law is right, bent or another.

    python -m checks.statistics.misfit [--studies=60] [--typical=0.003] [--workdir=runs/misfit] [--json[=PATH]]

Tables of 14 to 108 runs with noise of 0.1 to 0.8 % are made by a law that is Chinchilla's, or is not: its exponents
drift, its terms add otherwise, it is Kaplan's, or a smooth error of 0.1 to 1 % is added. Chinchilla's law is fitted;
scored are the losses of runs at 2, 8 and 33 times the largest budget, and the best size at 33 times, with the misfit
and without. On these universes `TYPICAL` of scalelab/laws/trust/discrepancy.py was chosen; no public table was read.
Writes `checks/results/misfit.json` and `.md`.

    python -m checks.statistics.misfit --studies=10 --workdir=/tmp/misfit
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import count_above_zero, folder_path, whole_number
from scalelab.experiments.shared import markdown_table, publish_result
from scalelab.laws.law.names import load_law
from scalelab.laws.law.objective import huber_log
from scalelab.laws.solve import optimum
from scalelab.laws.solve.optimum import FitError
from scalelab.laws.solve.pose import pose_problem
from scalelab.laws.trust import discrepancy, form, uncertainty
from scalelab.laws.use import decision

LEVEL, RESAMPLES = 0.9, 300
BEYOND, SPLITS = (2.0, 8.0, 33.0), (0.5, 1.0, 2.0)
GRIDS = {"6 budgets x 6 sizes": (6, 6), "5 budgets x 7 sizes": (5, 7), "9 budgets x 12 sizes": (9, 12)}
SCATTERED = {"30 runs": 30, "60 runs": 60, "14 runs": 14}
KINDS = ("law", "bent in N", "bent in D", "wave", "other sum", "kaplan", "smooth error")
Surface = Callable[[np.ndarray, np.ndarray], np.ndarray]


def draw_truth(kind: str, random: np.random.Generator) -> Surface:
    """Draw a loss over N and D."""
    E, alpha, beta = random.uniform(1.2, 2.0), *random.uniform(0.25, 0.45, 2)
    A, B = random.uniform(0.3, 1.0) * 1e8**alpha, random.uniform(0.3, 1.0) * 2e9**beta
    size = np.exp(random.uniform(np.log(0.001), np.log(0.01))) * random.choice([-1, 1])
    n0, d0 = np.log(random.uniform(3e7, 5e8)), np.log(random.uniform(1e9, 1e10))
    gamma, length = random.choice([0.6, 0.75, 1.4]), random.uniform(2, 6)
    waves, phases = random.standard_normal((2, 60)) / length, random.uniform(0, 2 * np.pi, 60)
    heights = abs(size) * np.sqrt(2 / 60) * random.standard_normal(60)

    def loss(N: np.ndarray, D: np.ndarray) -> np.ndarray:
        n, d, by_size, by_data = np.log(N), np.log(D), A / N**alpha, B / D**beta
        if kind == "bent in N":
            return E + by_size * np.exp(4 * size * ((n - n0) / np.log(10)) ** 2) + by_data
        if kind == "bent in D":
            return E + by_size + by_data * np.exp(4 * size * ((d - d0) / np.log(10)) ** 2)
        if kind == "other sum":
            return E + (by_size ** (1 / gamma) + by_data ** (1 / gamma)) ** gamma
        if kind == "kaplan":
            return ((8.8e13 / N) ** 0.8 + 5.4e13 / D) ** 0.095
        plain = E + by_size + by_data
        if kind == "wave":
            return plain * np.exp(size * (np.tanh((n + d - n0 - d0) / 3) + np.sin((d - n - 3) / 2)))
        if kind == "smooth error":
            return plain * np.exp(np.cos(np.stack([n, d], axis=-1) @ waves + phases) @ heights)
        return plain

    return loss


def draw_runs(random: np.random.Generator) -> tuple[str, np.ndarray, np.ndarray]:
    """Draw a design: (name, N, D)."""
    name = str(random.choice([*GRIDS, *SCATTERED]))
    least, factor = 10 ** random.uniform(17, 18.5), random.uniform(2, 4)
    if name in GRIDS:
        budgets, sizes = GRIDS[name]
        C = np.repeat(least * factor ** np.arange(budgets), sizes)
        N = np.sqrt(C / 120) * np.tile(np.geomspace(0.2, 5, sizes), budgets)
    else:
        C = least * 10 ** np.sort(random.uniform(0, 2.5, SCATTERED[name]))
        N = np.sqrt(C / 120) * np.exp(random.uniform(-1.3, 1.3, len(C)))
    return name, N, C / (6 * N)


def score_study(seed: int) -> dict[str, Any] | None:
    """Simulate a table, fit it with and without misfit, and score both; None where it determines no law."""
    random, kind = np.random.default_rng(seed), KINDS[seed % len(KINDS)]
    design, N, D = draw_runs(random)
    truth, noise = draw_truth(kind, random), np.exp(random.uniform(np.log(0.001), np.log(0.008)))
    loss = truth(N, D) * np.exp(noise * random.standard_normal(len(N)))
    posed = pose_problem(load_law("chinchilla"), {"N": N, "D": D}, loss, huber_log())
    largest = (6 * N * D).max()
    sizes = np.sqrt(largest / 120 * np.repeat(BEYOND, len(SPLITS))) * np.tile(SPLITS, len(BEYOND))
    tokens = largest * np.repeat(BEYOND, len(SPLITS)) / (6 * sizes)
    measured = truth(sizes, tokens) * np.exp(noise * random.standard_normal(len(sizes)))
    grid = np.sqrt(largest * BEYOND[-1] / 120) * np.geomspace(0.02, 50, 4000)
    best_size = grid[truth(grid, largest * BEYOND[-1] / (6 * grid)).argmin()]
    row: dict[str, Any] = {"seed": seed, "kind": kind, "design": design, "noise": float(noise)}
    try:
        best = optimum.minimise_objective(posed)
        misfit = discrepancy.find_discrepancy(posed, best, RESAMPLES, seed)
        tested = form.judge_form(posed, best)
        row["fails"] = bool(tested and tested.fails)
        for name, carried in (("without", None), ("with", misfit)):
            boot = uncertainty.bootstrap_fit(posed, best, RESAMPLES, seed, misfit=carried)
            row[name] = _score(posed, best, boot, sizes, tokens, measured)
            spent = decision.decide_allocation(posed, best, boot, largest * BEYOND[-1], level=LEVEL)
            row[name]["N"] = bool(spent.N.low <= best_size <= spent.N.high)
            row[name]["N_factor"] = float(spent.N.high / max(spent.N.low, 1.0))
    except FitError:
        return None
    return row


def _score(posed: Any, best: Any, boot: Any, N: np.ndarray, D: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """Share of new runs inside, and the mean interval score (Gneiting & Raftery 2007) of log loss."""
    each = [
        uncertainty.predict_run(posed, best, boot, {"N": float(n), "D": float(d)}, LEVEL)
        for n, d in zip(N, D, strict=True)
    ]
    low, high, loss = (np.log(values) for values in ([p.low for p in each], [p.high for p in each], measured))
    missed = np.maximum(low - loss, 0.0) + np.maximum(loss - high, 0.0)
    score = high - low + 2.0 / (1.0 - LEVEL) * missed
    return {"inside": float(np.mean(missed == 0.0)), "score": float(np.mean(score))}


def format_page(result: dict[str, Any]) -> str:
    """Format the scores as Markdown, a row for each kind of truth."""
    head = [
        "truth",
        "tables",
        "form fails",
        "runs inside",
        "mean score",
        "median score",
        "best size inside",
        "its factor",
    ]
    rows = []
    for kind in (*KINDS, "all but law"):
        chosen = [
            row for row in result["scores"] if row["kind"] == kind or (kind == "all but law" != row["kind"] != "law")
        ]
        if not chosen:
            continue
        cells = [kind, str(len(chosen)), f"{np.mean([row['fails'] for row in chosen]):.0%}"]
        for key, show, joined in (
            ("inside", "{:.0%}", np.mean), ("score", "{:.1%}", np.mean), ("score", "{:.1%}", np.median),
            ("N", "{:.0%}", np.mean), ("N_factor", "{:.2g}", np.median),
        ):  # fmt: skip
            cells.append(" -> ".join(show.format(joined([row[n][key] for row in chosen])) for n in ("without", "with")))
        rows.append(cells)
    return "\n".join(
        [
            "# Intervals that carry a law's misfit, on simulated tables",
            "",
            f"`{result['command']}`, {result['date']}, {result['machine']}.",
            "",
            f"Chinchilla's law, fitted to tables of 14 to 108 runs with noise of 0.1 to 0.8 %, {RESAMPLES} resamples; "
            "90 % intervals without the misfit -> with it. Runs are at 2, 8 and 33 times the largest budget; the best "
            "size is that at 33 times. Score: the interval score of log loss, whose least is about 4.1 standard "
            f"deviations. Typical misfit before the rows are seen: {result['typical']:.1%}.",
            "",
            *markdown_table(head, rows),
            "",
        ]
    )


def main(argv: Sequence[str]) -> int:
    """Run the study; exit code 0, or 2 for bad input."""
    return guarded("misfit", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("statistics.misfit", __doc__)
    parser.add_argument("--studies", type=whole_number, default=60, metavar="COUNT", help="simulated tables")
    parser.add_argument(
        "--typical", type=count_above_zero, metavar="X", help="median of the prior of misfit (default: the package's)"
    )
    parser.add_argument("--workdir", type=folder_path, metavar="DIR", help="write here, not into checks/results")
    options = parser.parse_args(argv)
    discrepancy.TYPICAL = options.typical or discrepancy.TYPICAL
    scores = []
    for seed in range(options.studies):
        row = score_study(seed)
        scores += [row] if row else []
        print(f"table {seed + 1} of {options.studies}", end="\r", file=sys.stderr, flush=True)
    result = result_header("statistics.misfit", argv) | {"typical": discrepancy.TYPICAL, "scores": scores}
    return publish_result(options.workdir or RESULTS, "misfit", result, format_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
