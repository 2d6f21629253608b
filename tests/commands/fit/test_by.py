"""`scalelab fit --by=COLUMN`: what it prints, its JSON, and what does not go with it."""

import csv
import json

import numpy as np
import pytest

from scalelab.__main__ import main


@pytest.fixture
def table(tmp_path):
    random, path = np.random.default_rng(1), tmp_path / "groups.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("optimizer", "params", "tokens", "loss"))
        for name, A in (("muon", 330), ("adam", 400)):
            for n in np.geomspace(1e7, 1e9, 5):
                for d in np.geomspace(2e8, 2e10, 5):
                    loss = 1.7 + A / n**0.34 + 600 / d**0.3
                    writer.writerow((name, n, d, loss * np.exp(0.003 * random.standard_normal())))
    return str(path)


def test_groups_are_compared(capsys, table, tmp_path):
    path = tmp_path / "fit.json"
    command = ["fit", table, "--by=optimizer", "--against=adam", "--shared=E", "--target-flops=1e20"]
    assert main([*command, "--bootstrap=200", f"--json={path}"]) == 0
    lines, block = capsys.readouterr().out, json.loads(path.read_text())
    assert "A, B of each group; shared: E, alpha, beta" in lines and "50 rows (adam 25, muon 25)" in lines
    assert "compute for the loss of adam:" in lines and "the data do not ask for them" in lines
    assert block["reference"] == "adam" and list(block["groups"]) == ["adam", "muon"]
    _, low, high = block["groups"]["muon"]["over_reference"]["A"]
    assert low < 0.825 < high and high - low < 0.1
    factor, low, high = block["compute"]["1e+20"]["muon"]["factor"]
    assert low < (0.825 ** (1 / 0.34)) ** ((0.34 + 0.3) / 0.6) * 1.2 and high < 0.8 and low < factor < high
    assert block["groups"]["adam"]["params"]["E"] == block["groups"]["muon"]["params"]["E"]
    assert main(["fit", table, "--by=optimizer", "--bootstrap=0", "--exponents=separate"]) == 0
    assert "certificate of muon: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--by=optimiser"], "--by=optimiser: no such column; did you mean 'optimizer'?"),
        (["--by=optimizer", "--against=adamw"], "--against=adamw: no such group of 'optimizer'; did you mean 'adam'?"),
        (["--by=optimizer", "--exponents=pool"], "--exponents=pool: unknown; did you mean 'pooled'?; one of shared"),
        (["--by=optimizer", "--exponents=pooled"], "at least 3, or --exponents=shared or separate"),
        (["--by=optimizer", "--shared=e"], "law 'chinchilla' has no 'e'"),
        (["--by=optimizer", "--holdout=5"], "--holdout has no effect with --by: fit one group by --where"),
        (["--by=optimizer", "--level=90"], "level = 90: an interval's level lies between 0 and 1; 0.9 is usual"),
        (["--by=optimizer", "--best-of=lr", "--per=N"], "--by has no effect with --best-of: leave it out"),
        (["--against=adam"], "--against needs --by=COLUMN"),
        (["--by=optimizer", "--approach=2"], "--by has no effect with --approach=2: leave it out"),
    ],
)
def test_mistakes(capsys, table, options, words):
    assert main(["fit", table, *options]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
