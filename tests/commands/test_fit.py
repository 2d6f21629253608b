"""`scalelab fit` end to end: on a folder of runs, on a table, its JSON against summary.json, its refusals."""

import csv
import json

import pytest

from scalelab import records
from scalelab.__main__ import main
from scalelab.laws.study import fit_study
from tests.laws.examples import QUICKSTART_LIKE, data_file, published, study

POINTS = list(zip(*study(QUICKSTART_LIKE, 0.005), strict=True))


def write_run(folder, role, status, N, D, loss):
    records.write_json(folder / "config.json", {"model": {"d_model": 8}, "train": {"seed": 0}, "log": {"role": role}})
    params = {"total": N, "non_embedding": N * 0.8, "kaplan": N * 0.7, "chinchilla": N}
    flops = {"exact": 7.0 * N * D, "6ND": 6.0 * N * D, "chinchilla": 7.1 * N * D}
    record = {"status": status, "params": params, "flops": flops, "tokens": D, "val_loss": loss, "bpb": loss}
    records.write_json(folder / "record.json", record)


@pytest.fixture
def study_folder(tmp_path):
    for i, point in enumerate(POINTS):
        write_run(tmp_path / "runs" / f"fit-{i:02d}", "fit", "done", *point)
    write_run(tmp_path / "runs" / "holdout", "holdout", "done", 1e6, 1e7, 1.2)
    write_run(tmp_path / "runs" / "check-x2", "check", "done", 1e4, 1e6, 5.0)
    write_run(tmp_path / "runs" / "fit-bad", "fit", "diverged", 1e4, 1e6, float("nan"))
    return tmp_path


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "points.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("params", "flops", "nll"), *((N, 6 * N * D, loss) for N, D, loss in POINTS)])
    return str(path)


def answer(capsys, *argv):
    assert main(["fit", *map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_study_folder_gives_the_numbers_of_its_summary(capsys, study_folder):
    block = fit_study(records.read_runs(study_folder)).to_json()
    records.write_json(study_folder / "summary.json", {"fit": block})
    result = answer(capsys, study_folder)
    summary = records.read_json(study_folder / "summary.json")["fit"]
    assert {key: result[key] for key in summary} == summary
    reasons = {entry["name"]: entry["reason"] for entry in result["excluded"]}
    assert reasons == {"holdout": "role holdout", "check-x2": "role check", "fit-bad": "diverged"}


def test_a_table_with_two_of_n_d_c(capsys, table, study_folder):
    from_table = answer(capsys, table, "--columns=N=params,C=flops,loss=nll")
    from_runs = answer(capsys, study_folder)
    assert from_table["params"] == pytest.approx(from_runs["params"], rel=1e-6)
    assert from_table["n_convention"] == "column 'params'"


def test_the_human_table_says_everything(capsys, table):
    command = ["fit", table, "--columns=N=params,C=flops,loss=nll", "--target-flops=4e12", "--drop-top-loss=1"]
    assert main([*command, "--bootstrap=100"]) == 0
    said = capsys.readouterr().out
    for part in (
        "19 runs, N: column 'params'; D = C / 6N", "certificate: ", "starts agree", "100 of 100 resamples",
        "one of the 1 largest losses: row 1", "best use of 4e+12 FLOPs where C = 6 N D", "90% interval",
    ):  # fmt: skip
        assert part in said, part
    for name in ("E", "A", "B", "alpha", "beta", "a", "b", "N", "D", "loss"):
        assert any(line.split()[:1] == [name] for line in said.splitlines()), name


def test_the_convention_and_the_target(capsys, study_folder):
    result = answer(capsys, study_folder, "--n=non_embedding", "--target-flops=4e12", "--bootstrap=50")
    assert result["n_convention"] == "non_embedding" and result["bootstrap"]["used"] == 50
    N, D = result["target"]["N"], result["target"]["D"]
    assert result["target"]["k"] == pytest.approx(7 / 0.8)
    assert N[0] * D[0] == pytest.approx(4e12 / (7 / 0.8))
    assert N[1] < N[0] < N[2]


def test_besiroglus_law_from_the_command_line(capsys):
    columns = "--columns=N=Model Size,C=Training FLOP,loss=loss"
    result = answer(capsys, data_file("chinchilla/points.csv"), columns, "--drop-top-loss=5", "--bootstrap=100")
    golden = published("besiroglu", "true_min_huber_ours")
    assert result["n_runs"] == 240
    assert {name: pytest.approx(golden[name], rel=2e-6) for name in result["params"]} == result["params"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["no/such/thing"], "no file or folder 'no/such/thing'"),
        (["{table}"], "--columns=N=params,D=tokens,loss=val_loss"),
        (["{table}", "--columns=N=params,C=flops,loss=nll", "--n=kaplan"], "both say what N is"),
        (["{table}", "--columns=C=flops,loss=nll", "--n=kaplan"], "no column 'N_kaplan'"),
        (["{table}", "--columns=N=params,C=flops,loss=nll", "--drop-top-loss=16"], "4 runs: a law with five"),
        (["{table}", "--columns=N=params,C=flops,loss=nll", "--delta=-1"], "delta = -1"),
        (["{table}", "--target-flop=1"], "did you mean '--target-flops'"),
        (["{table}", "--columns=N=params,C=flops,loss=nll", "--target-flops=0"], "C = 0"),
        (["{folder}", "--columns=N=params"], "--columns is for tables"),
        (["{folder}", "--n=totl"], "invalid choice"),
    ],
)
def test_mistakes_end_with_2_and_one_line(capsys, table, study_folder, argv, said):
    assert main(["fit", *(part.format(table=table, folder=study_folder) for part in argv)]) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_a_fit_that_cannot_be_vouched_for_ends_with_1(capsys, tmp_path):
    path = tmp_path / "five.csv"
    path.write_text(
        "N,D,loss\n" + "".join(f"{N},{D},{loss}\n" for N, D, loss in (POINTS[i] for i in (0, 7, 12, 15, 19)))
    )
    assert main(["fit", str(path)]) == 1
    assert "more runs are needed for intervals" in capsys.readouterr().err
