"""Units are questioned by value and by label, with what would mend them; tables in the usual units never are."""

import numpy as np
import pytest

from scalelab.laws.examples import QUICKSTART
from scalelab.laws.law.names import LAWS
from scalelab.laws.read.columns import parse_columns
from scalelab.laws.read.points import law_columns
from scalelab.laws.read.table import read_table
from scalelab.laws.read.units import loss_unit, question_labels, question_values
from tests.tables import table_path

N = np.geomspace(1e7, 1e10, 8)
D = 20 * N
LOSS = np.linspace(3.5, 2.2, 8)


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ({}, None),
        ({"N": N / 1e9}, ["N has a median of 0.3", "'N=COLUMN*1e9'"]),
        ({"N": N / 1e6, "D": D}, ["N has a median of 3", "'N=COLUMN*1e6'"]),
        ({"N": np.log(N)}, ["N is 16.1 to 23, as logarithms are", "'N=exp(COLUMN)'"]),
        ({"D": np.log10(D)}, ["D is 8.3 to 11.3, as logarithms are", "'D=10**COLUMN'"]),
        ({"D": D / 1e6}, ["D is 2e-05 tokens a parameter", "*1e6"]),
        ({"C": 6 * N * D / 8.64e19}, ["C is 1.2e-20 times 6ND", "PFLOP/s-days", "'C=COLUMN*8.64e+19'"]),
        ({"C": 6 * N * D / 1e21}, ["C in ZFLOPs", "'C=COLUMN*1e+21'"]),
        ({"C": 60 * N * D * 20}, ["C is 2e+02 times 6ND", "look at the units of C, N and D"]),
        ({"C": 6 * N * D * 1.5}, None),
        ({"loss": np.exp(LOSS)}, ["a perplexity", "'loss=log(COLUMN)'"]),
        ({"loss": LOSS / 5}, ["below 1 in all rows: bits per byte, or an accuracy"]),
    ],
)
def test_odd_values_are_questioned(columns, parts):
    given = {"N": N, "D": D, "loss": LOSS, "C": 6 * N * D} | columns
    found = question_values({"N": given["N"], "D": given["D"]}, given["loss"], "loss", given["C"])
    assert bool(found) == bool(parts) and all(finding.kind == "units" for finding in found)
    assert all(part in found[0].text for part in parts or [])


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        ("val_bpb", "bits/byte"),
        ("bits", "bits"),
        ("ppl", "perplexity"),
        ("log(ppl)", "nats/token"),
        ("x", "nats/token"),
    ],
)
def test_a_loss_is_headed_by_its_own_unit(column, unit):
    assert loss_unit({"N": "N", "loss": column}) == unit


@pytest.mark.parametrize(
    ("column", "part"),
    [
        ("bits", "bits, not nats: --columns='loss=bits*0.693147'"),
        ("val_bpb", "bits per byte"),
        ("ppl", "'loss=log(ppl)'"),
        ("Perplexity", "a perplexity"),
        ("val_acc", "an accuracy"),
        ("loss", ""),
        ("orbits", ""),
        ("log(ppl)", ""),
        ("bits*0.693147", ""),
    ],
)
def test_labels_are_questioned(column, part):
    found = question_labels({"N": "N", "loss": column})
    assert part in found[0].text if part else not found


USUAL = {
    "chinchilla/points.csv": "", "datablations/runs_182_fit_set.csv": "", "datablations/runs_296_all.csv": "",
    "gadre/runs.csv": "loss=loss_c4_val", "gemstones/hot.jsonl": "N=params_active_precise",
    "gemstones/slim_chinchilla.jsonl": "N=params_active_precise", "porian/isoflop_points.csv": "N=n",
}  # fmt: skip


@pytest.mark.parametrize("name", [*USUAL, "quickstart"])
def test_the_usual_tables_are_not_questioned(name):
    path = QUICKSTART if name == "quickstart" else table_path(name)
    table = read_table(path, parse_columns(USUAL.get(name)))
    rows = [row for row in table.rows if row["val_loss"]]
    columns, loss = law_columns({key: [row[key] for row in rows] for key in ("N", "D", "loss")}, LAWS["chinchilla"])
    flops = np.array([row["C"] for row in rows])
    assert question_values(columns, loss, "loss", flops) == [] == question_labels(table.columns)
