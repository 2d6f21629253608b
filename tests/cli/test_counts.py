"""Counts in options as people write them in tables, and numbers that no answer can be computed from."""

import json

import pytest

from scalelab.__main__ import main

TABLE = "side,C,loss,seed\n" + "".join(
    f"{side},{c:g},{2 + (c / 1e17) ** -0.1 + shift:.4f},{seed}\n"
    for side, shift in (("base", 0.0), ("new", -0.05))
    for c in (1e17, 1e18, 1e19)
    for seed in (0, 1)
)


def test_a_plan_of_7b_parameters_and_1t_tokens(capsys):
    answers = []
    for words in (["--params=7B", "--tokens=1T"], ["--params=7e9", "--tokens=1_000_000_000_000"]):
        assert main(["plan", *words, "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert answers[0] == answers[1] and "7000000000" in json.dumps(answers[0]).replace(".0", "")
    assert main(["plan", "--params=7X", "--tokens=1T"]) == 2
    assert "'7X' is not a number above zero, such as 7e9 or 7B" in capsys.readouterr().err
    assert main(["plan", "--params=7B", "--tokens=1T", "--price=2k", "--config=tiny"]) == 2  # a price isn't a count


REFUSED = {
    "--fix=E=nan": "--fix 'E=nan' is not NAME=NUMBER, a finite one",
    "--fix=E=1e308": "--fix 'E=1e308' is not NAME=NUMBER, a finite one",
    "--target-flops=1e308": "'1e308' is not between",
    "--target-flops=nan": "'nan' is not a number above zero",
}


@pytest.mark.parametrize("option", REFUSED)
def test_ablate_refuses_numbers_that_give_no_answer(option, tmp_path, capsys):
    path = tmp_path / "runs.csv"
    path.write_text(TABLE)
    assert main(["ablate", str(path), "--baseline=base", option]) == 2
    error = capsys.readouterr().err
    assert REFUSED[option] in error and len(error.strip().splitlines()) == 1


def test_ablate_takes_large_counts_and_names_the_cell_that_no_run_has(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    path.write_text(TABLE)
    assert main(["ablate", str(path), "--baseline=base", "--target-flops=20B"]) == 0
    path.write_text(TABLE.replace("1e+19", "1e308"))
    capsys.readouterr()
    assert main(["ablate", str(path), "--baseline=base"]) == 2
    assert "runs.csv, row 5, 'C': '1e308' is above 1e+60" in capsys.readouterr().err
