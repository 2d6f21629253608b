"""Check how often `scalelab fit FILE` accuses clean tables: the null rate of every sentence that it prints of rows,
of the form, and of held-out rows.

    python -m checks.statistics.claims [--tables=100] [--json[=PATH]]

Tables of 9, 12 and 30 settings follow Chinchilla's law with noise of .4 %: Gaussian; Laplace, whose tails are heavier;
two seeds of each setting with losses of three decimals. Each goes through the command as a CSV file, with a text
column that has nothing to do with the loss; of 12 settings and more the largest budget is held out. A sentence that
is printed of such a table is wrong. The last rows show what the sentences are worth: how often one row that is off by
3 % is named, and noise that falls by 7 from the smallest runs to the largest. Writes `checks/results/claims.json` and
`.md`; twenty minutes on one core.

    python -m checks.statistics.claims --tables=20 --json
"""

import csv
import pathlib
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from checks.shared import RESULTS, command_line, result_header
from checks.statistics.decisions import door
from scalelab.__main__ import guarded
from scalelab.cli.parser import whole_number
from scalelab.experiments.shared import markdown_table, publish_result
from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, loss_at, optimal_allocation

TRUTH = ChinchillaParams(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28)
GRIDS = {9: (3, 3), 12: (4, 3), 30: (5, 6)}  # settings: budgets, sizes of each
HELD_OUT = "--holdout=3"  # of 12 settings and more: the largest budget
NOISE, OFF, FALL = 0.004, 0.03, 7.0
ARMS = ("gaussian", "laplace", "seeds of 3 decimals", "one row off", "falling noise")
CLEAN = ARMS[:3]
SENTENCES = {  # a sentence: its words in what the command prints
    "outliers": "look at these runs",
    "duplicates": "equal to another row, loss and all",
    "off-centre": "of its sizes' range: add sizes",
    "edge minimum": "the loss is least at its (smallest|largest) size",
    "weak curvature": "its best size is little more than noise",
    "units": "^units: |^design: (N|D|C|the loss) (is|has|are) ",
    "scatter": "the noise changes with size",
    "form": "the law misses a pattern",
    "wider law": "fits better: ",
    "two laws": "follow laws of their own",
    "shared error": "rows of equal N share an error",
    "groups": "^groups: ",
    "checkpoints": "checkpoint",
    "too narrow": "fewer held-out rows are inside than by chance",
    "too wide": "the intervals are wider than errors of",
    "another warning": "^WARNING: ",
}
NO_ACCUSATION = "identified|one-sided|at its bound|resamples gave a fit"  # warnings of what the rows leave open
NAMED = "look at these runs .*\\b{}\\b"
HOSTS = ("a100-1", "a100-2", "h100-1")


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


def write_table(columns: Mapping[str, np.ndarray], seed: int, path: pathlib.Path) -> pathlib.Path:
    """Write a table as CSV, with a name for each row, and a column of hosts that says nothing of the loss."""
    hosts = np.random.default_rng(seed).choice(HOSTS, len(columns["N"]))
    names = [f"run-{row:03d}" for row in range(len(hosts))]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "host", "N", "D", "loss"])
        for name, host, N, D, loss in zip(names, hosts, *(columns[key] for key in ("N", "D", "loss")), strict=True):
            writer.writerow([name, host, f"{N:.0f}", f"{D:.0f}", f"{loss:.6g}"])
    return path


def sentences_said(text: str) -> set[str]:
    """The kinds of sentences in what the command printed; a warning that is none of the others is one too."""
    *named, _ = SENTENCES.items()
    lines = text.splitlines()
    said = {kind for kind, words in named if any(re.search(words, line) for line in lines)}
    plain = [line for line in lines if line.startswith("WARNING: ") and not re.search(NO_ACCUSATION, line)]
    known = [words for _, words in named] + ["fails its test"]  # the form, once more
    rest = [line for line in plain if not any(re.search(words, line) for words in known)]
    return said | ({"another warning"} if rest else set())


def null_rates(arm: str, rows: int, tables: int, folder: pathlib.Path) -> dict[str, float]:
    """{sentence: share of tables of which it is printed}; "the row": where the row that is off is named; "refused"."""
    counts, answers = Counter[str](), 0
    options = ["--bootstrap=100", HELD_OUT] if arm in CLEAN and rows > min(GRIDS) else ["--bootstrap=0"]
    for seed in range(tables):
        table, row = simulate_table(arm, rows, seed)
        answer = door.ask(["fit", str(write_table(table, seed, folder / "table.csv")), *options], folder)
        if answer.code:
            counts["refused"] += 1
            continue
        answers += 1
        counts.update(sentences_said(answer.text))
        counts["the row"] += re.search(NAMED.format(f"run-{row:03d}"), answer.text) is not None
    shares = {name: counts[name] / max(answers, 1) for name in (*SENTENCES, "the row")}
    return shares | {"refused": counts["refused"] / tables}


def format_page(result: Mapping[str, Any]) -> str:
    """Format the rates as Markdown: a row for each sentence and kind of noise, then what the tests find."""
    rates, sizes = result["rates"], [str(rows) for rows in GRIDS]
    body = [
        [name, arm, *(f"{rates[arm][rows][name]:.1%}" for rows in sizes)]
        for name in (*SENTENCES, "refused")
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
        f"{np.sqrt(0.05 * 0.95 / result['tables']):.1%} at 5 %. A sentence is found by its words (`SENTENCES` of the "
        "check); `another warning`: a line WARNING that is none of them, nor one of what the rows leave open.",
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
    parser.add_argument("--tables", type=whole_number, default=100, metavar="COUNT", help="of each kind (default: 100)")
    options = parser.parse_args(argv)
    rates: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for arm in ARMS:
            folder = pathlib.Path(scratch)
            rates[arm] = {str(rows): null_rates(arm, rows, options.tables, folder) for rows in GRIDS}
            print(f"{arm}: done", file=sys.stderr, flush=True)
    result = result_header("statistics.claims", argv) | {"tables": options.tables, "rates": rates}
    return publish_result(RESULTS, "claims", result, format_page(result), options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
