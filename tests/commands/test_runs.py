"""`scalelab runs`: the plain table, the tidy CSV, JSON, chosen columns, and mistakes."""

import csv
import json
import os
import pty
import subprocess
import sys

import pytest

from scalelab.__main__ import main
from scalelab.laws.read.readers import read_raw_rows, write_parquet
from scalelab.record import listing, records
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


def test_parameters_that_a_token_uses_have_a_column_where_they_are_fewer(sweep, capsys):
    record = records.read_json(sweep / "runs" / "small" / "record.json")
    record["params"]["active"] = 4000
    record["flops_per_token"]["6N"], record["flops"]["6ND"] = 6 * 4000, 6 * 4000 * record["tokens"]
    records.write_json(sweep / "runs" / "small" / "record.json", record)
    assert main(["runs", str(sweep)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["name", "status", "N", "N_active"]
    assert lines[2].split()[:4] == ["small", "done", "10000", "4000"] and lines[1].split()[2:4] == ["40000", "40000"]


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
    wanted = listing.read_runs(sweep)
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
    wanted = listing.read_runs(sweep)
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
    assert main(["runs", str(sweep), str(single), "--show=name,N_kaplan,model.d_model", "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "name,N_kaplan,model.d_model" and lines.count("small,5904,64") == 2 and len(lines) == 5


def test_show_alone_prints_the_names_that_it_takes(sweep, capsys):
    assert main(["runs", str(sweep), "--show"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert {"name", "N_kaplan", "optim.peak_lr", "val_loss"} <= set(names)
    assert main(["runs", str(sweep), f"--show={','.join(names)}", "--csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == ",".join(names)


def test_a_folder_that_just_holds_runs_will_do(sweep, capsys):
    assert main(["runs", str(sweep), "--csv"]) == main(["runs", str(sweep / "runs"), "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :] and len(lines) == 8


def test_json_is_a_list_of_rows(sweep, capsys):
    assert main(["runs", str(sweep), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in rows] == ["diverged", "running", "done"] and rows[2]["N_chinchilla"] == 10_100


@pytest.mark.parametrize("arguments, message", [
    (["no/such"], "holds no run"), (["{sweep}", "--show=nam"], "did you mean 'name'?"), ([], "required"),
    (["{sweep}", "--csv=no/such/x.csv"], "no folder"), (["{sweep}", "--parquet=no/such/x"], "no folder"),
    (["{sweep}", "--cvs"], "did you mean '--csv'?"),
])  # fmt: skip
def test_bad_input_is_one_line_and_exit_2(sweep, capsys, arguments, message):
    assert main(["runs", *(a.format(sweep=sweep) for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_sweeps_status_tells_long_names_apart_in_a_pipe(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    names = [f"00{i}-peak_lr=0.003162277660168-warmup_share=0.05-seed={i}" for i in range(2)]
    records.write_json(tmp_path / "sweep.json", {"trials": dict.fromkeys(names, 10)})
    assert main(["sweep", f"--workdir={tmp_path}", "--status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["name", "status"], *([name, "waiting"] for name in names)]


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Six learning rates, two seeds each: one diverged, one still running."""
    folder = tmp_path_factory.mktemp("grid")
    synthetic.write_sweep(folder)
    return folder


def test_by_a_key_is_one_line_a_setting_with_its_mean_over_seeds(grid, capsys):
    """Seen: no command said which learning rate won, only which single run had the least loss."""
    assert main(["runs", str(grid), "--by=optim.peak_lr", f"--json={grid}/answer.json"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["optim.peak_lr", "seeds"] and "verdict" in head
    assert [line.split()[:4] for line in lines[4:6]] == [["0.008", "1", "of", "2"], ["0.016", "1", "of", "2"]]
    assert "not ranked yet: 1 not finished" in lines[4] and "ranked last: 1 diverged" in lines[5]
    answer = json.loads((grid / "answer.json").read_text())
    losses = {row["name"]: row["val_loss"] for row in listing.read_runs(grid) if row["status"] == "done"}
    for setting in answer["settings"][:4]:
        lr = setting["values"]["optim.peak_lr"]
        pair = [losses[f"lr{lr:g}-s{seed}"] for seed in (0, 1)]
        assert setting["mean"] == pytest.approx(sum(pair) / 2)
        assert setting["standard_error"] == pytest.approx(abs(pair[0] - pair[1]) / 2)
    assert answer["best"] == min(answer["settings"][:4], key=lambda s: s["mean"])["values"]
    assert lines[6].startswith(f"Best: optim.peak_lr = {answer['best']['optim.peak_lr']:g}, with validation loss")


def test_readmes_sweep_says_which_rates_are_worse(tmp_path, capsys):
    """Seen: .62 nats above the best, "not told apart", by two seeds for themselves."""
    losses = {0.003: (2.091, 2.071), 0.01: (2.125, 2.005), 0.03: (2.422, 2.326), 0.1: (2.695, 2.682)}
    for lr, pair in losses.items():
        for seed, loss in enumerate(pair):
            folder = tmp_path / "runs" / f"lr{lr}-s{seed}"
            synthetic.write_run(folder, seed=seed, peak_lr=lr, lines=8)
            synthetic.end_at(folder, loss)
    synthetic.write_run(tmp_path / "runs" / "lr1-s0", peak_lr=1.0, status="diverged", lines=8)
    assert main(["runs", str(tmp_path), "--by=optim.peak_lr"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[4:7] for line in lines[1:5]] == [["2.081", "±", "0.010"], ["2.065", "±", "0.060"],
        ["2.374", "±", "0.048"], ["2.6885", "±", "0.0065"]]  # fmt: skip
    assert [line[-4:-1] for line in lines[3:5]] == [["worse", "(p", "="]] * 2
    assert " ".join(lines[5][-3:]) == "last: 1 diverged" and "Worse: 0.03, 0.1." in " ".join(lines[7])
    assert " ".join(lines[-3]).startswith("Noise of one run: 0.038 nats, 3 degrees of freedom over 4 settings")


def test_a_sweep_over_steps_is_a_design_and_names_what_to_run(tmp_path, capsys):
    for steps in (1000, 2000, 4000):
        for seed in (0, 1):
            synthetic.write_run(tmp_path / "runs" / f"{steps}-{seed}", d=512 * steps, seed=seed, lines=8)
    assert main(["runs", str(tmp_path), "--by=train.steps", f"--json={tmp_path}/by.json"]) == 0
    text, answer = capsys.readouterr().out, json.loads((tmp_path / "by.json").read_text())
    assert "train.steps changes the size or the compute of a run: an axis of a design" in text
    assert "`scalelab fit DIR`" in text and "Best" not in text and "edge" not in text
    assert answer["best"] is None and answer["design"] == ["train.steps"]


def test_settings_that_were_trained_longer_are_said(grid, capsys):
    """The rates of this grid have steps of their own: no key alone changes D, so they are ranked, with a warning."""
    assert main(["runs", str(grid), "--by=optim.peak_lr"]) == 0
    assert "Settings that are compared differ in tokens (D) and FLOPs (C) too" in capsys.readouterr().out


def test_the_table_by_settings_as_files(grid, tmp_path, capsys):
    assert main(["runs", str(grid), "--by=optim.peak_lr", "--csv", f"--parquet={tmp_path}/by.parquet"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["seeds"] for row in rows] == ["2", "2", "2", "2", "1", "1"] and rows[5]["diverged"] == "1"
    assert {row["verdict"] for row in rows} >= {"best", "not ranked"} and rows[5]["mean_loss"] == ""
    assert [row["rank"] for row in read_raw_rows(tmp_path / "by.parquet")][4:] == [None, None]


def test_the_report_and_the_sweep_have_the_same_answer(grid, capsys):
    assert main(["runs", str(grid), "--by=optim.peak_lr,train.steps", "--json"]) == 0
    by_both = json.loads(capsys.readouterr().out)
    records.write_json(grid / "sweep.json", {"trials": {row["name"]: 10 for row in listing.read_runs(grid)}})
    assert main(["sweep", f"--workdir={grid}", "--status", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["answer"]
    assert [s["mean"] for s in answer["settings"]] == [s["mean"] for s in by_both["settings"]]
    assert main(["sweep", f"--workdir={grid}", "--status"]) == 0
    assert "\n".join(answer["sentences"]) in capsys.readouterr().out


def test_trials_that_have_not_started_are_counted_in_their_settings(grid, capsys):
    trials = {row["name"]: 10 for row in listing.read_runs(grid)} | {"lr0.001-s2": 10}
    values = {"lr0.001-s2": {"optim.peak_lr": 1e-3, "train.steps": 2901, "train.seed": 2}}
    records.write_json(grid / "sweep.json", {"trials": trials, "values": values})
    assert main(["runs", str(grid), "--by=optim.peak_lr", "--json"]) == 0
    (setting,) = [s for s in json.loads(capsys.readouterr().out)["settings"] if s["values"] == {"optim.peak_lr": 1e-3}]
    assert (setting["pending"], len(setting["losses"]), setting["verdict"]) == (1, 2, "not ranked")


def test_a_damaged_run_is_counted_and_exit_1(tmp_path, capsys):
    synthetic.write_sweep(tmp_path)
    (tmp_path / "runs" / "lr0.001-s0" / "record.json").write_text("{")
    assert main(["runs", str(tmp_path), "--by=optim.peak_lr"]) == 1
    assert "In no setting: 1 trial, damaged or not started." in capsys.readouterr().out


@pytest.mark.parametrize("arguments, message", [
    (["--by=optim.peak_lt"], "no config key 'optim.peak_lt'; did you mean 'optim.peak_lr'?"),
    (["--by=lr"], "no config key 'lr'; did you mean 'optim.peak_lr'?"),  # seen: the last step's metric of that name
    (["--by=train.seed"], "seeds are replications"), (["--by=optim.peak_lr", "--show=name"], "its own columns"),
    (["--by=model.n_layers"], "differ in optim.peak_lr too, which is not replication; "
        "nearest: --by=model.n_layers,optim.peak_lr"), (["--by="], "--by names no key"),
])  # fmt: skip
def test_a_wrong_key_to_group_by_is_one_line(grid, capsys, arguments, message):
    (grid / "sweep.json").unlink(missing_ok=True)
    assert main(["runs", str(grid), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
