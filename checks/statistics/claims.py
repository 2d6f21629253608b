"""Check how often `scalelab fit` accuses rows of clean tables: the null rate of every sentence about the rows.

    python -m checks.statistics.claims [--tables=200] [--json[=PATH]]

Tables of 9, 12, 20, 40 and 240 settings follow Chinchilla's law with noise of .4 %: Gaussian; Laplace, whose tails
are heavier; two seeds of each setting with losses of three decimals. A sentence that is said of such a table is wrong.
The last rows show what the sentences are worth: how often one row that is off by 3 % is named, and noise that falls by
7 from the smallest runs to the largest. Writes `checks/results/claims.json` and
`.md`; ten minutes on one core.

    python -m checks.statistics.claims --tables=20 --json
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from checks.shared import RESULTS, command_line, result_header
from scalelab.__main__ import guarded
from scalelab.cli.parser import whole_number
from scalelab.experiments.shared import markdown_table, publish_result
from scalelab.laws.fits.fitted import Fitted
from scalelab.laws.fits.fitting import fit
from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, loss_at, optimal_allocation
from scalelab.laws.solve.optimum import FitError

TRUTH = ChinchillaParams(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28)
GRIDS = {9: (3, 3), 12: (4, 3), 20: (4, 5), 40: (5, 8), 240: (12, 20)}  # rows: budgets, sizes of each
NOISE, OFF, FALL = 0.004, 0.03, 7.0
ARMS = ("gaussian", "laplace", "seeds of 3 decimals", "one row off", "falling noise")
CLEAN = ARMS[:3]
SENTENCES = {
    "outliers": "farther off the law of the other rows than chance …: look at these runs",
    "duplicates": "equal to another row, loss and all: each such run counts twice",
    "off-centre": "budget …: the loss is least at … of its sizes' range: add sizes",
    "edge minimum": "budget …: the loss is least at its smallest size: add smaller ones",
    "weak curvature": "budget …: its best size is little more than noise",
    "units": "questions about units (C, N, D and the loss)",
    "scatter": "the noise changes with size",
    "form": "the law misses a pattern",
}


def simulate_table(arm: str, rows: int, seed: int) -> tuple[dict[str, np.ndarray], int]:
    """(columns of a table of this arm, the row that is off)."""
    random = np.random.default_rng([rows, seed, ARMS.index(arm)])
    budgets, sizes = GRIDS[rows]
    C = np.geomspace(1e18, 1e21, budgets)
    N = (optimal_allocation(TRUTH, C).N[:, None] * np.geomspace(1 / 3, 3, sizes)).ravel()
    C = np.repeat(C, sizes)
    if arm == "seeds of 3 decimals":
        N, C = np.repeat(N, 2), np.repeat(C, 2)
    D, place = C / (6 * N), np.log(C / C.min()) / np.log(C.max() / C.min())
    errors = NOISE * (random.laplace(size=len(N)) / 2**0.5 if arm == "laplace" else random.standard_normal(len(N)))
    row = int(random.integers(len(N)))
    if arm == "one row off":
        errors[row] += OFF * random.choice([-1, 1])
    if arm == "falling noise":
        errors *= FALL ** (0.5 - place)
    loss = loss_at(TRUTH, N, D) * np.exp(errors)
    return {"N": N, "D": D, "C": C, "loss": np.round(loss, 3) if arm == "seeds of 3 decimals" else loss}, row


def sentences_said(fitted: Fitted) -> set[str]:
    """The kinds of sentences that a fit's report has."""
    said = {finding.kind for finding in fitted.design} & set(SENTENCES)
    return said | ({"form"} if fitted.form and fitted.form.fails else set())


def null_rates(arm: str, rows: int, tables: int) -> dict[str, float]:
    """{sentence: share of tables of which it is said}; "the row": the share in which the row that is off is named."""
    counts, fits = Counter[str](), 0
    for seed in range(tables):
        table, row = simulate_table(arm, rows, seed)
        try:
            fitted = fit(table, bootstrap=0, identify=False)
        except FitError:
            continue
        fits += 1
        counts.update(sentences_said(fitted))
        counts["the row"] += any(each.kind == "outliers" and row in each.rows for each in fitted.design)
    return {name: counts[name] / max(fits, 1) for name in (*SENTENCES, "the row")}


def format_page(result: Mapping[str, Any]) -> str:
    """Format the rates as Markdown: a row for each sentence and kind of noise, then what the tests find."""
    rates, sizes = result["rates"], [str(rows) for rows in GRIDS]
    body = [
        [SENTENCES[name], arm, *(f"{rates[arm][rows][name]:.1%}" for rows in sizes)]
        for name in SENTENCES
        for arm in CLEAN
    ]
    power = [
        ["a row 3 % off is named", *(f"{rates['one row off'][rows]['the row']:.0%}" for rows in sizes)],
        ["noise that falls by 7 is said", *(f"{rates['falling noise'][rows]['scatter']:.0%}" for rows in sizes)],
        ["a row is named though only the noise falls",
         *(f"{rates['falling noise'][rows]['outliers']:.0%}" for rows in sizes)],
    ]  # fmt: skip
    return "\n".join([
        "# What is said of clean tables",
        "",
        f"`{result['command']}`, {result['date']}, {result['machine']}.",
        "",
        f"Shares of {result['tables']} tables by number of settings; a standard error is "
        f"{np.sqrt(0.05 * 0.95 / result['tables']):.1%} at 5 %.",
        "",
        *markdown_table(["sentence", "noise", *sizes], body),
        "",
        *markdown_table(["what should be found", *sizes], power),
        "",
    ])  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run the study; exit code 0, or 2 for bad input."""
    return guarded("claims", _main, argv)


def _main(argv: Sequence[str]) -> int:
    parser = command_line("statistics.claims", __doc__)
    parser.add_argument("--tables", type=whole_number, default=200, metavar="COUNT", help="of each kind (default: 200)")
    options = parser.parse_args(argv)
    rates: dict[str, dict[str, dict[str, float]]] = {}
    for arm in ARMS:
        rates[arm] = {str(rows): null_rates(arm, rows, options.tables) for rows in GRIDS}
        print(f"{arm}: done", file=sys.stderr, flush=True)
    result = result_header("statistics.claims", argv) | {"tables": options.tables, "rates": rates}
    return publish_result(RESULTS, "claims", result, format_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
