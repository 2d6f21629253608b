"""`scalelab ablate TABLE` on tables as trackers and spreadsheets export them."""

import json
import math

from scalelab.__main__ import main


def judge(capsys, table):
    """(text, the variant's JSON) of the command, which ends with 0."""
    assert main(["ablate", table, "--baseline=old"]) == 0
    text = capsys.readouterr().out
    assert main(["ablate", table, "--baseline=old", "--json"]) == 0
    return text, json.loads(capsys.readouterr().out)["variants"][0]


ROWS = [  # of the kind: (side, FLOPs, seed, loss)
    (side, C, seed, round((1.66 + 1.2 * (m * C / 6.3e18) ** -0.132) * math.exp(0.001 * math.sin(9 * seed + m)), 4))
    for C in (1e18, 3.4e18, 1.2e19, 4e19)
    for seed in range(3)
    for side, m in (("old", 1), ("new", 1.3))
]


def _spelled(path, header, row_of, mark=",", more=()):
    lines = [header, *(row_of(*row) for row in ROWS), *more]
    path.write_text("\n".join(mark.join(map(str, line)) for line in lines), encoding="utf-8-sig")
    return str(path)


def test_exports_of_trackers_and_spreadsheets_give_the_digits_of_a_plain_table(tmp_path, capsys):
    path = tmp_path / "t.csv"
    judge(capsys, _spelled(path, ("side", "C", "seed", "loss"), lambda *row: row))
    wanted = judge(capsys, str(path))[1]["verdict"]
    lost = [("x", "crashed", "new", 4e19, 7, ""), ("y", "Running", "old", 4e19, 8, 3.5)]
    header = ("Name", "State", "optim.name", "Train FLOPs", "train.seed", "eval/loss")
    text, variant = judge(capsys, _spelled(path, header, lambda *row: ("run", "Finished", *row), more=lost))
    assert variant["verdict"] == wanted and "did not finish are left out: 1 crashed, 1 running" in text
    decimal = lambda value: f"{value:.4E}".replace(".", ",")  # noqa: E731 - of a spreadsheet in most of Europe
    header = ("", "Optimizer", "Compute (EFLOPs)", "Seed", "Loss (nats)")
    row_of = lambda side, C, seed, loss: (seed, side, decimal(C / 1e18), seed, decimal(loss))  # noqa: E731
    assert judge(capsys, _spelled(path, header, row_of, ";"))[1]["verdict"] == wanted
    header = ("params.config", "params.n_params", "params.n_tokens", "params.seed", "metrics.val_loss")
    row_of = lambda side, C, seed, loss: (side, (C / 120) ** 0.5, 20 * (C / 120) ** 0.5, seed, loss)  # noqa: E731
    text, variant = judge(capsys, _spelled(path, header, row_of))
    assert variant["verdict"] == wanted and "side: 'params.config'" in text and "C is 6 N tokens" in text
    text, variant = judge(capsys, _spelled(path, ("arm", "C", "seed", "bpb"), lambda *row: (*row[:3], row[3] / 2.9)))
    assert variant["verdict"].split(":")[0] == wanted.split(":")[0] == "adopt" and "loss: 'bpb'" in text


def test_a_run_that_diverged_and_a_word_that_is_not_known(tmp_path, capsys):
    header, path = ("side", "C", "seed", "loss", "status"), tmp_path / "t.csv"
    table = _spelled(path, header, lambda *row: (*row, "done"), more=[("new", 4e19, 9, 2.1, "Diverged")])
    assert judge(capsys, table)[1]["verdict"].startswith("undecided: 1 runs diverged")
    assert main(["ablate", _spelled(path, header, lambda *row: (*row, "zombie")), "--baseline=old"]) == 2
    error = capsys.readouterr().err
    assert "'status' is 'zombie' in 24 rows: did these runs finish? write finished, crashed or" in error


def test_a_loss_that_is_missing_a_count_of_0_and_a_column_for_each_side_are_named(tmp_path, capsys):
    header, path, blank = ("side", "C", "seed", "tokens", "loss"), tmp_path / "t.csv", ("new", 4e19, 9, 0, "")
    table = _spelled(path, header, lambda *row: (*row[:3], 1e9, row[3]), more=[blank])
    text, _ = judge(capsys, table)
    assert "rows: 1 without a loss count as diverged: where one" in text and "1 of 4 runs of new diverged" in text
    diverged = _spelled(path, header, lambda *row: (*row[:3], 1e9, row[3]), more=[(*blank[:4], "nan")])
    assert "without a loss" not in judge(capsys, diverged)[0]
    mistakes = [
        ("row 1: tokens=0.0 is not a number of tokens above zero", lambda *row: (*row[:3], 0, row[3])),
        ("row 1: tokens=-5.0 is not a number of tokens above zero", lambda *row: (*row[:3], -5, row[3])),
    ]
    for message, row_of in mistakes:
        assert main(["ablate", _spelled(path, header, row_of), "--baseline=old"]) == 2
        assert message in capsys.readouterr().err
    path.write_text("C,old_loss,new_loss\n1e18,3.1,3.0\n4e18,2.9,2.8\n")
    assert main(["ablate", str(path), "--baseline=old"]) == 2
    assert "(a loss a side, as old_loss and new_loss? Write a row for each run)" in capsys.readouterr().err
