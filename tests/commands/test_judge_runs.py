"""`scalelab ablate` and `tune` on runs that other programs trained: files of transformers' Trainer and of wandb."""

import csv
import json
import pathlib
import shutil

import pytest

from scalelab import api
from scalelab.__main__ import main
from scalelab.errors import BadInput
from tests.tables import table_path

FILES = pathlib.Path(__file__).parents[1] / "foreign" / "files"
LADDER, SWEEP = FILES / "trainer_ladder", FILES / "wandb_sweep"


def call(capsys, *words):
    capsys.readouterr()
    code = main([*map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_trainers_ladders_other_seeds_are_no_difference_and_rmsprop_is_rejected(capsys):
    code, out, told = call(capsys, "ablate", LADDER / "adamw", LADDER / "again", LADDER / "rmsprop")
    assert code == 0 and "read as trainer_state.json of transformers" in told
    assert "runs by side: adamw: 9, again: 9, rmsprop: 9; C = 6 N D" in out
    assert "the baseline is adamw, the first" in out
    verdicts = dict(line.split(": ", 1) for line in out.splitlines() if line.startswith(("again:", "rmsprop:")))
    assert verdicts["again"].startswith("undecided: no difference shown")
    assert verdicts["rmsprop"].startswith("reject")


def write_runs(folder, rows):
    """A folder of each row's run, as a tracker of JSON lines writes them."""
    for i, row in enumerate(rows):
        place = folder / row["side"] / f"run{i}"
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps({"dim": int(row["dim"]), "optimizer": row["side"]}))
        lines = [
            {"step": s, "train/loss": float(row["bpb"]) + 1 / s, "total_flops": float(row["C"]) * s / 5}
            for s in range(1, 6)
        ]
        lines[-1]["eval/loss"] = float(row["bpb"])
        (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.full
def test_folders_and_a_setting_and_the_table_of_the_same_runs_give_one_answer(tmp_path):
    """Marin 2167, as its table and as run folders: sides by folder, by a found setting, and by a named one."""
    table = table_path("marin/adamh_2167.csv")
    with open(table) as file:
        source = write_runs(tmp_path / "theirs", list(csv.DictReader(file)))
    known = api.judge_table(table, "v02", columns={"loss": "bpb"}).variants
    folders = api.judge_runs([source / "v02", source / "adamh"])
    assert folders.baseline == "v02" and any("source.dim varies within a budget" in note for note in folders.notes)
    assert "settings of which the sides share no value: source.optimizer (v02; adamh)" in folders.notes
    found = api.judge_runs(source, "v02")
    assert any("sides are told apart by source.optimizer" in note for note in found.notes)
    named = api.judge_runs(source, "v02", columns={"side": "optimizer"})
    for judged in (folders, found, named):
        (one,), (other,) = judged.variants, known
        assert one["rungs"] == other["rungs"] and one["verdict"] == other["verdict"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{lr}", "--baseline=x"], "which setting tells the sides apart? the runs differ in optim.peak_lr"),
        (["{lr}", "--columns=side=optim.peak_lr"], "--baseline is needed: one of 0.003, 0.01, 0.03"),
        (["{lr}", "--columns=side=learning_rate"], "--baseline is needed: one of 0.003, 0.01, 0.03"),
        (["{lr}", "--columns=side=optim.peak_lr", "--baseline=0.1"], "the sides are 0.003, 0.01, 0.03"),
        (["{lr}", "--columns=side=wrmup", "--baseline=1"], "the runs have no setting 'wrmup'"),
        (["{lr}", "{eps}", "--seeds=5"], "--seeds has no effect with a table or runs"),
        (["{lr}", "{eps}", "--columns=side=x,shoe=y"], "shoe"),
        (["{lr}/none"], "does not exist"),
    ],
)
def test_what_tells_no_sides_is_asked_in_one_line(capsys, words, message):
    places = {"lr": SWEEP / "lr", "eps": SWEEP / "eps"}
    code, _, told = call(capsys, "ablate", *(word.format(**places) for word in words))
    assert code == 2 and message in told.splitlines()[-1]


@pytest.mark.full
def test_runs_without_a_budget_or_a_loss_are_refused_by_name(tmp_path):
    rows = [{"side": side, "dim": 8, "bpb": 3.0, "C": 1e15} for side in "ab"]
    source = write_runs(tmp_path / "theirs", rows)
    for path in source.rglob("metrics.jsonl"):
        path.write_text(path.read_text().replace("total_flops", "wall"))
    with pytest.raises(BadInput, match="has no budget: N and D is not known"):
        api.judge_runs([source / "a", source / "b"])
    for path in source.rglob("metrics.jsonl"):
        path.write_text(path.read_text().replace("eval/loss", "other"))
    with pytest.raises(BadInput, match="no run ended with a loss to compare \\(2 no validation loss\\)"):
        api.judge_runs([source / "a", source / "b"])


def test_tunes_answer_on_a_wandb_sweep(capsys):
    code, out, told = call(capsys, "tune", SWEEP / "lr")
    assert code == 0 and "read as W&B offline run" in told
    last = out.splitlines()[-1]
    assert last.startswith("no difference shown: optim.peak_lr = 0.01 leads optim.peak_lr = 0.03 by ")
    assert last.endswith("3 seeds; one setting is not told apart")
    assert next(line for line in out.splitlines() if line.startswith("0.003 ")).endswith("worse (p < 0.001)")


@pytest.mark.full
def test_tune_names_a_winner_only_where_the_seeds_show_one(tmp_path, capsys):
    two, null = tmp_path / "two", tmp_path / "null"
    for place in (two, null):
        place.mkdir()
        for path in (SWEEP / "lr").glob("lr0.01-*"):
            shutil.copy(path, place)
    for path in (SWEEP / "lr").glob("lr0.003-*"):
        shutil.copy(path, two)
    for path in (SWEEP / "eps").glob("*"):
        shutil.copy(path, null)
    (winner,) = api.judge_sweep(two).winners
    losses = {row["optim.peak_lr"]: [] for row in api.runs(two)}
    for row in api.runs(two):
        losses[row["optim.peak_lr"]].append(row["val_loss"])
    assert winner.verdict == "won" and winner.values == {"optim.peak_lr": 0.01}
    assert winner.lead == pytest.approx(sum(losses[0.003]) / 3 - sum(losses[0.01]) / 3)
    low, high = winner.interval
    assert 0 < low < winner.lead < high
    (other,) = api.judge_sweep(null).winners
    assert other.verdict == "no difference shown" and other.interval[0] < 0 < other.interval[1]
    code, _, told = call(capsys, "tune", two, "--trials=3")
    assert code == 2 and "--trials has no effect with SOURCEs" in told
    code, _, told = call(capsys, "tune", "--by=optim.peak_lr", "--config=tiny", f"--workdir={tmp_path / 'w'}")
    assert code == 2 and "--by goes with SOURCEs" in told
