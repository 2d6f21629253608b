"""Models with experts under layouts with and without the mesh axis `expert`, compared with one device."""

import datetime
import itertools
import sys

from rich.console import Console
from rich.table import Table

from checks.numerics.parallelism.layouts import EXPERT_LAYOUTS, expert_variants
from checks.shared import RESULTS, result_header
from scalelab.cli.parser import emit_json
from scalelab.experiments.shared import markdown_table, write_result
from scalelab.experiments.studies.fsdp.rows import compare_layout
from scalelab.record import records
from scalelab.train.lineage.facts import package_versions

COLUMNS = ("experts on", "loss", "gradients", "sums of blocks", "KiB a device", "by formula", "KiB of rows sent")
COLUMNS += ("by formula", "date")
LOSS = 2e-7  # a unit in the last place of an fp32 loss above four is 1.1e-7


def check_experts(names: list[str], quick: bool, json: str | None) -> int:
    """Compare these layouts, print the table, and store the rows; 0 if every row is one device's, else 1.

    Rows of layouts that were not asked for stay, each with its date. --quick stores nothing.
    """
    rows = compare_experts(names, quick)
    if json != "-":
        table = Table(*COLUMNS)
        for line in expert_cells(rows):
            table.add_row(*line)
        Console(width=180).print(table)
    if not quick:
        write_experts(merge_rows(rows, [] if len(names) == len(EXPERT_LAYOUTS) else read_stored()))
    emit_json({"experts": rows}, json)
    return 0 if all(map(is_row_exact, rows)) else 1


def compare_experts(names: list[str], quick: bool) -> list[dict]:
    """Rows of models with experts: balanced, and skewed so that some devices have all rows; `quick`: skewed alone."""
    rows = []
    for name, skewed in itertools.product(names, (True,) if quick else (False, True)):
        print(f"{name}: {'skewed' if skewed else 'balanced'} experts", file=sys.stderr, flush=True)
        layout = EXPERT_LAYOUTS[name]
        rows.append(compare_layout(name, layout, expert_variants()[skewed], "fp32", skewed=skewed))
        rows[-1] |= {"skewed": skewed, "date": str(datetime.date.today())}
    return rows


def read_stored() -> list[dict]:
    """The rows of results/parallelism_experts.json; those of one date have it from the file."""
    path = RESULTS / "parallelism_experts.json"
    stored = records.read_json(path) if path.exists() else {"date": "", "experts": []}
    return [{"date": stored["date"]} | row for row in stored["experts"]]


def merge_rows(rows: list[dict], before: list[dict]) -> list[dict]:
    """The rows by layout, in the order of the layouts: new ones take the place of those before."""
    by_key = {(row["layout"], row["skewed"]): row for row in before + rows}
    order = itertools.product(EXPERT_LAYOUTS, (False, True))
    return [by_key[key] for key in order if key in by_key]


def is_row_exact(row: dict) -> bool:
    """Whether a row with experts is one device's: loss, gradients, sums, and the bytes held and sent by formula."""
    near = row["loss_rel_diff"] <= LOSS and row["grad_rel_diff"] <= 3e-6 and row["sums_rel_diff"] <= 2e-6
    held = abs(row["argument_bytes"] / row["argument_bytes_formula"] - 1) <= 2e-3
    return near and held and row.get("sent_rows_formula") == row.get("sent_rows")


def expert_cells(rows: list[dict]) -> list[tuple[str, ...]]:
    """The cells of the table of experts."""

    def kib(row: dict, name: str) -> str:
        return "" if row.get(name) is None else f"{row[name] / 1024:.1f}"

    sizes = ("argument_bytes", "argument_bytes_formula", "sent_rows", "sent_rows_formula")
    return [
        (
            f"{r['layout']}, {'skewed' if r['skewed'] else 'balanced'}",
            *(f"{r[key]:.1e}" for key in ("loss_rel_diff", "grad_rel_diff", "sums_rel_diff")),
            *(kib(r, name) for name in sizes),
            r["date"],
        )
        for r in rows
    ]


def write_experts(rows: list[dict]) -> None:
    """Write results/parallelism_experts.json and .md."""
    facts = result_header("numerics.parallelism", ["--experts=all"]) | {"versions": package_versions()}
    installed = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    lines = [
        f"`python -m checks.numerics.parallelism --experts=all`, {facts['date']}; {installed}; eight fake CPU devices.",
        "",
        "Models with eight experts, two a token, in fp32: one with balanced loads, and one in which the first experts "
        "have all tokens. Largest differences from one device; bytes of parameters and Adam's "
        "moments on a device; rows sent: what arrives on a device by all-to-alls along `expert` in a step. By formula "
        "each comes once forward and once backward, also where blocks are recomputed (balanced). A pipeline's stage "
        "computes each block again from its input: rows come once more, and all of the last block once more for the "
        "loss; there each branch of every tick is counted once.",
        "",
        *markdown_table(COLUMNS, expert_cells(rows)),
    ]
    write_result(RESULTS, "parallelism_experts", facts | {"experts": rows}, "\n".join(lines) + "\n")
