"""The committed table of oracles: it has every optimizer, every difference within its tolerance. No torch needed."""

import json
import math
import pathlib
import re

import pytest

from scalelab.optim.registry import OPTIMIZERS

ROOT = pathlib.Path(__file__).parents[2]
RESULT = json.loads((ROOT / "checks/results/oracles.json").read_text())


def test_every_optimizer_is_compared_with_another_implementation_of_its_formula():
    compared = {row["what"] for row in RESULT["rows"] if row["tolerance"] is not None}
    assert compared >= set(OPTIMIZERS) | {"mup", "loss scale"}, (
        "a new optimizer: give it a row in checks/numerics/oracles/cases.py"
    )


@pytest.mark.parametrize("row", RESULT["rows"], ids=lambda row: f"{row['what']}, {row['setting']}")
def test_every_difference_is_within_its_tolerance(row):
    assert math.isfinite(row["difference"]) and "." in row["oracle"]
    if row["tolerance"] is None:
        assert row["note"] and row["difference"] > 1e-4, "another formula needs a reason, and a difference"
    else:
        assert row["difference"] <= row["tolerance"] <= 3e-2


def test_the_table_names_the_versions_it_was_measured_with():
    pins = re.findall(r"^(\w+)==([\w.+]+)", (ROOT / "requirements-oracles.txt").read_text(), re.M)
    assert {"torch", "pytorch_optimizer"} <= dict(pins).keys()
    for name, _ in pins:
        assert RESULT["versions"][name].split("+")[0] in {version.split("+")[0] for pin, version in pins if pin == name}


def test_the_page_shows_the_same_rows():
    lines = [x for x in (ROOT / "checks/results/oracles.md").read_text().splitlines() if x.startswith("| ")]
    shown = [(cells[1], cells[4]) for cells in ([cell.strip() for cell in line.split("|")] for line in lines[2:])]
    assert shown == [(row["what"], f"{row['difference']:.1e}") for row in RESULT["rows"]]
