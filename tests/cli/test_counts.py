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


REFUSED = {  # numbers without k, M, B and T, except counts; those of plan, which multiplies them, have bounds
    "plan --price=2k": "'2k' is not a number above zero",
    "plan --gpu-hours=inf --mfu=0.4": "'inf' is not a number above zero",
    "plan --gpu-hours=9 --mfu=1e61": "'1e61' is not between 1e-60 and 1e+60",
    "plan --mtbf-hours=1e-61": "'1e-61' is not between 1e-60 and 1e+60",
    "plan --params=1e-320 --tokens=1e9": "'1e-320' is not between 1e-60 and 1e+60",
    "watch runs --every=0": "'0' is not a number above zero",
    "watch runs --every=nan": "'nan' is not a number above zero",
    "watch runs --price=none": "'none' is not a number above zero",
    "watch runs --price=1e61": "'runs' holds no run",
    "ablate --plan --noise=x": "'x' is not a number above zero",
    "ablate --tokens-per-param=0": "'0' is not a number above zero",
}


@pytest.mark.parametrize("line", REFUSED)
def test_numbers_above_zero_are_refused_alike_by_each_command(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    output = capsys.readouterr()
    assert REFUSED[line] in output.err and "such as" not in output.err, output.err
    assert output.out == "" and output.err.count("\n") == 1


def test_ablate_takes_large_counts_and_names_the_cell_that_no_run_has(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    path.write_text(TABLE)
    assert main(["ablate", str(path), "--baseline=base", "--target-flops=20B"]) == 0
    path.write_text(TABLE.replace("1e+19", "1e308"))
    capsys.readouterr()
    assert main(["ablate", str(path), "--baseline=base"]) == 2
    assert "runs.csv, row 5, 'C': '1e308' is above 1e+60" in capsys.readouterr().err
