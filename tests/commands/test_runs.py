"""`scalelab runs`: the plain table, the tidy CSV, JSON, chosen columns, and mistakes."""

import csv
import json
import os
import pty
import subprocess
import sys

import pytest

from scalelab import records
from scalelab.__main__ import main
from scalelab.laws.read.readers import read_raw_rows, write_parquet
from tests.report import synthetic


@pytest.fixture
def sweep(tmp_path):
    for name, n, status in (("small", 10_000, "done"), ("large", 40_000, "running"), ("[red]odd", 20_000, "diverged")):
        synthetic.write_run(tmp_path / "sweep" / "runs" / name, n, status=status, lines=20)
    return tmp_path / "sweep"


def test_the_plain_table_has_a_line_a_run(sweep, capsys):
    assert main(["runs", str(sweep)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "name",
        "status",
        "N",
        "D",
        "C",
        "train.steps",
        "optim.peak_lr",
        "train.seed",
        "val_loss",
        "bpb",
    ]
    assert [line.split()[:3] for line in lines] == [
        ["[red]odd", "diverged", "20000"], ["large", "running", "40000"], ["small", "done", "10000"]
    ]  # fmt: skip
    assert lines[1].split()[-1] == "-", "what isn't known yet is a dash"


def test_a_terminal_gets_a_drawn_table_with_names_as_they_are(sweep):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "scalelab", "runs", str(sweep)]
    environment = os.environ | {"COLUMNS": "150", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=follower, env=environment) as process:
        os.close(follower)
        output = b""
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            output += part
    os.close(leader)
    assert process.returncode == 0 and "│" in output.decode() and "[red]odd" in output.decode()


def test_csv_is_every_column_of_every_run(sweep, tmp_path, capsys):
    assert main(["runs", str(sweep), "--csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    wanted = records.read_runs(sweep)
    assert list(rows[0]) == list(wanted[0])
    for row, run in zip(rows, wanted, strict=True):
        assert row == {key: "" if value is None else str(value) for key, value in run.items()}
    assert main(["runs", str(sweep), f"--csv={tmp_path}/runs.csv"]) == 0
    assert (
        capsys.readouterr().out == "" and list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines())) == rows
    )


def test_parquet_is_the_same_table_with_its_types(sweep, tmp_path, capsys):
    assert main(["runs", str(sweep), f"--parquet={tmp_path}/runs.parquet"]) == 0
    assert capsys.readouterr().out == "" and sorted(p.name for p in tmp_path.iterdir()) == ["runs.parquet", "sweep"]
    wanted = records.read_runs(sweep)
    rows = read_raw_rows(tmp_path / "runs.parquet")
    assert rows == wanted and list(rows[0]) == list(wanted[0])
    kinds = {
        column: {type(row[column]) for row in rows} - {type(None)}
        for column in ("N", "optim.peak_lr", "name", "val_loss")
    }
    assert kinds == {"N": {int}, "optim.peak_lr": {float}, "name": {str}, "val_loss": {float}}
    assert main(["fit", f"{tmp_path}/runs.parquet", "--bootstrap=0"]) == 2  # read as runs are: of three one is done
    assert "scalelab: 1 runs: " in capsys.readouterr().err


def test_a_column_of_several_kinds_is_of_numbers_or_of_text(tmp_path):
    rows = [{"a": 1, "b": True, "c": None, "d": "x"}, {"a": 2.5, "b": False, "d": 3}, {"b": None, "d": True}]
    write_parquet(rows, list("abcd"), tmp_path / "t.parquet")
    assert read_raw_rows(tmp_path / "t.parquet") == [
        {"a": 1.0, "b": True, "c": None, "d": "x"}, {"a": 2.5, "b": False, "c": None, "d": "3"},
        {"a": None, "b": None, "c": None, "d": "True"},
    ]  # fmt: skip


def test_many_folders_and_chosen_columns(sweep, capsys):
    single = sweep / "runs" / "small"
    assert main(["runs", str(sweep), str(single), "--columns=name,N_kaplan,model.d_model", "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "name,N_kaplan,model.d_model" and lines.count("small,5904,64") == 2 and len(lines) == 5


def test_a_folder_that_just_holds_runs_will_do(sweep, capsys):
    assert main(["runs", str(sweep), "--csv"]) == main(["runs", str(sweep / "runs"), "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :] and len(lines) == 8


def test_json_is_a_list_of_rows(sweep, capsys):
    assert main(["runs", str(sweep), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in rows] == ["diverged", "running", "done"] and rows[2]["N_chinchilla"] == 10_100


@pytest.mark.parametrize("arguments, said", [
    (["no/such"], "holds no run"), (["{sweep}", "--columns=nam"], "did you mean 'name'?"), ([], "required"),
    (["{sweep}", "--csv=no/such/x.csv"], "no folder"), (["{sweep}", "--parquet=no/such/x"], "no folder"),
    (["{sweep}", "--cvs"], "did you mean '--csv'?"),
])  # fmt: skip
def test_bad_input_is_one_line_and_exit_2(sweep, capsys, arguments, said):
    assert main(["runs", *(a.format(sweep=sweep) for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_sweeps_status_tells_long_names_apart_in_a_pipe(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    names = [f"00{i}-peak_lr=0.003162277660168-warmup_share=0.05-seed={i}" for i in range(2)]
    records.write_json(tmp_path / "sweep.json", {"trials": dict.fromkeys(names, 10)})
    assert main(["sweep", f"--workdir={tmp_path}", "--status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["name", "status"], *([name, "waiting"] for name in names)]
