"""`scalelab fit --approach=2 --seed-noise`: the noise is the table's own; what doesn't go with it."""

import csv
import json

import numpy as np
import pytest

from scalelab.__main__ import main

COLUMNS = ["--approach=2", "--columns=N=N,C=C,loss=loss"]


@pytest.fixture
def table(tmp_path):
    def write(repeats, sizes=6):
        random, rows = np.random.default_rng(0), []
        for C in (1e18, 4e18, 1.6e19):
            best = 1e7 * (C / 1e18) ** 0.5
            for x in np.linspace(-1, 1.2, sizes):
                for seed in range(repeats):
                    loss = np.exp(1 + 0.04 * x**2 + 0.002 * random.standard_normal())
                    rows.append((best * np.exp(x), C, loss, seed))
        path = tmp_path / f"{repeats}-{sizes}.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("N", "C", "loss", "seed"), *rows])
        return str(path)

    return write


@pytest.mark.parametrize(("repeats", "words"), [(3, "from 18 settings with repeated runs (36 deg"), (1, "from 6 runs")])
def test_the_noise_is_the_tables_own(capsys, table, tmp_path, repeats, words):
    """.2 % in the table: Porian's model would have said .5 % of a nat and more at high losses."""
    ends = {}
    for level in ("0.5", "0.9"):
        path = tmp_path / "fit.json"
        command = ["fit", table(repeats), *COLUMNS, "--method=parabola", "--seed-noise", f"--level={level}"]
        assert main([*command, f"--json={path}"]) == 0
        assert words in capsys.readouterr().out
        block = json.loads(path.read_text())
        assert block["interval_level"] == float(level) and block["seed_noise"]["share"] == pytest.approx(0.002, rel=0.6)
        ends[level] = np.ptp(block["interval"])
    assert ends["0.9"] > 2 * ends["0.5"]


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        (3, ["--seed-noise"], "no budget four sizes, so the table shows no noise; nearest: leave it out"),
        (6, ["--seed-noise", "--bootstrap=0"], "--bootstrap=0 gives none: ask for copies; 1000 is usual"),
        (6, ["--seed-noise", "--level=90"], "level = 90: an interval's level lies between 0 and 1; 0.9 is usual"),
        (6, ["--level=0.9"], "without --seed-noise, which gives its interval: add it"),
    ],
)
def test_mistakes(capsys, table, sizes, options, words):
    assert main(["fit", table(1, sizes), *COLUMNS, *options]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
