"""`scalelab eval`: what is printed and kept, columns of `scalelab runs`, a downstream law of them, and mistakes."""

import json

import pytest

from scalelab.__main__ import main
from scalelab.evaluate import evaluations
from scalelab.record import listing, records
from tests.evaluate.runs import copy, texts, trained

ITEMS = [
    {"context": "def f(", "choices": ["x):\n", "x]:\n"], "answer": 0},
    {"context": "for ", "choices": ["i ", "( "], "answer": 0},
]


@pytest.fixture
def run(tmp_path):
    return copy(tmp_path / "run")


@pytest.fixture
def tasks(tmp_path):
    for name, items in (
        ("ends", ITEMS),
        ("words", [{"context": "pri", "completion": "nt"}, {"context": "x", "completion": "q"}]),
    ):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    return f"{tmp_path}/ends.jsonl,{tmp_path}/words.jsonl"


def test_what_is_scored_is_printed_kept_once_and_a_column(run, tasks, tmp_path, capsys):
    assert main(["eval", str(run), f"--tasks={tasks}", "--sequences=9"]) == 0
    head, data, ends, words = capsys.readouterr().out.splitlines()
    assert head == f"{run} at step 4"
    assert data.startswith("  text: ") and "nats/token" in data and "9 of " in data
    assert ends.startswith("  ends: accuracy ") and "chance 0.500" in ends and ends.endswith("2 items")
    assert words.startswith("  words: completed ")
    first = records.read_evaluations(run)
    assert main(["eval", str(run), f"--tasks={tasks}", "--sequences=9", f"--json={tmp_path}/out.json"]) == 0
    again = records.read_evaluations(run)
    assert [{k: v for k, v in row.items() if k != "time"} for row in again] == [
        {k: v for k, v in row.items() if k != "time"} for row in first
    ]
    assert [(row["step"], row["weights"], row["set"], row["kind"]) for row in again] == [
        (4, "trained", "text", "data"), (4, "trained", "ends", "choice"), (4, "trained", "words", "cloze")
    ]  # fmt: skip
    assert json.loads((tmp_path / "out.json").read_text())["evaluations"] == again
    capsys.readouterr()
    assert main(["runs", str(run), "--show=name,text_loss,ends_acc,words_error", "--csv"]) == 0
    _, loss, acc, error = capsys.readouterr().out.splitlines()[1].split(",")
    assert float(loss) == again[0]["metrics"]["loss"] and float(acc) == again[1]["metrics"]["acc"]
    assert float(error) == 1 - again[2]["metrics"]["acc"]


def test_other_weights_and_steps_stand_beside_them(run, capsys):
    for weights in ([str(run), "--ema"], [str(run), "--average=2"], [f"{run}@2"], [str(run)]):
        assert main(["eval", *weights, "--sequences=4"]) == 0
    out = capsys.readouterr().out
    assert "at step 4, the average of its weights\n" in out and "at step 4, the mean of steps 2, 4\n" in out
    rows = records.read_evaluations(run)
    assert [(row["step"], row["weights"]) for row in rows] == [(4, "ema"), (4, "mean2"), (2, "trained"), (4, "trained")]
    assert len({row["metrics"]["loss"] for row in rows}) == 4 and len({row["digest"] for row in rows}) == 4
    assert rows[2]["tokens"] == rows[3]["tokens"] / 2
    row = listing.read_run(run)
    assert row["ema_text_loss"] == rows[0]["metrics"]["loss"] and row["text_loss"] == rows[3]["metrics"]["loss"]


def test_a_changed_file_replaces_its_scores_and_says_so(run, tmp_path, capsys):
    path = tmp_path / "ends.jsonl"
    for items in (ITEMS, ITEMS[:1]):
        path.write_text("".join(json.dumps(item) + "\n" for item in items))
        assert main(["eval", str(run), f"--tasks={path}", "--sequences=4"]) == 0
    assert "ends: replaced the scores of a set that had this name and other content" in capsys.readouterr().out
    assert [row["metrics"].get("items") for row in records.read_evaluations(run)] == [None, 1]


def test_other_data_are_scored_by_the_same_ids(run, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("hello world " * 4000)
    (tmp_path / "b.txt").write_text("another text " * 4000)
    other = ["--config.data.source=text", f"--config.data.path={tmp_path}/*.txt"]
    assert main(["eval", str(run), *other, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["evaluations"]
    assert row["metrics"]["bpb"] == pytest.approx(row["metrics"]["loss"] / 0.6931472, rel=0.05)
    assert main(["eval", str(run), "--config.data.source=synthetic"]) == 2
    assert "was trained on ids of 'bytes', these are of 'ids-256': they mean other text" in capsys.readouterr().err


@pytest.mark.full
def test_each_source_of_a_prepared_folder_has_its_loss_and_another_tokenizer_is_refused(run, tmp_path, capsys):
    for name, text in (("code", "def f(x):\n    return x\n"), ("talk", "so it goes on and on. ")):
        (tmp_path / name).mkdir()
        for i in range(12):
            (tmp_path / name / f"{i}.txt").write_text(f"{i} " + text * (20 + i))
    sources = [f"--source={name}={tmp_path}/{name}/*.txt" for name in ("code", "talk")]
    command = ["prepare", *sources, "--val-fraction=0.4", "--workers=1"]
    assert main([*command, "--tokenizer=bytes", f"--out={tmp_path}/Two parts"]) == 0
    assert main(["eval", str(run), f"--data={tmp_path}/Two parts", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["evaluations"]
    assert [row["set"] for row in rows] == ["two_parts", "two_parts_code", "two_parts_talk"]
    assert rows[1]["metrics"]["loss"] != rows[2]["metrics"]["loss"] and len({row["fingerprint"] for row in rows}) == 1
    assert listing.read_run(run)["two_parts_talk_bpb"] == rows[2]["metrics"]["bpb"]
    assert main([*command, "--tokenizer=bpe:300", f"--out={tmp_path}/large"]) == 0
    capsys.readouterr()
    assert main(["eval", str(run), f"--data={tmp_path}/large"]) == 2
    assert "model.vocab_size=256 is too small" in capsys.readouterr().err
    assert main(["eval", str(run), "--data=no/such"]) == 2
    assert "data.path='no/such' is not a folder that `scalelab prepare` made" in capsys.readouterr().err


@pytest.mark.slow
def test_a_downstream_law_is_fitted_to_own_runs(tmp_path, capsys):
    from tests.report import synthetic

    for i, loss in enumerate((1.2, 1.5, 1.9, 2.4, 3.0, 3.4, 4.0, 5.0)):
        folder = synthetic.write_run(tmp_path / "sweep" / "runs" / f"r{i}", 10_000 * 2**i, status="done", lines=20)
        folder = tmp_path / "sweep" / "runs" / f"r{i}"
        metrics = {"loss": loss, "error": 0.85 - 2.08 * 2.718281828 ** (-0.9 * loss)}
        row = {"step": records.read_json(folder / "record.json")["steps"], "weights": "trained", "set": "ends"}
        evaluations.write_evaluations(folder, [row | {"fingerprint": "f", "kind": "choice", "metrics": metrics}])
    command = ["fit", str(tmp_path / "sweep"), "--law=downstream", "--bootstrap=0", "--json"]
    assert main([*command, "--columns=loss=ends_loss,error=ends_error"]) == 0
    params = json.loads(capsys.readouterr().out)["params"]
    assert {k: round(v, 3) for k, v in params.items()} == {"epsilon": 0.85, "k": 2.08, "gamma": 0.9}
    assert main([*command, "--columns=error=ends_eror"]) == 2
    assert "no run of" in capsys.readouterr().err


MISTAKES = {
    "no run": (["no/such"], "'no/such' is not a run folder; write RUN or RUN@STEP"),
    "no step": (["{run}@3"], "has no checkpoint of step 3; it has [2, 4]; nearest: {run}@"),
    "no file": (["{run}", "--tasks=nowhere.jsonl"], "--tasks: no file 'nowhere.jsonl'"),
    "model": (["{run}", "--config.model.d_model=4"], "--config.model.d_model: what was trained can't be changed"),
    "data key": (["{run}", "--config.data.pathh=x"], "did you mean 'data.path'"),
    "sequences": (["{run}", "--sequences=-1"], "--sequences=-1"),
    "average": (["{run}", "--average=3"], "3 checkpoints of {run}: kept up to there: 2, 4; nearest: 2"),
    "both": (["{run}", "--average=2", "--ema"], "an average of averages"),
    "twice": (["{run}", "--tasks={tasks},{tasks}"], "--tasks: two files of the name 'ends'"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_end_in_one_line_and_2(case, tmp_path, tasks, capsys):
    arguments, message = MISTAKES[case]
    names = {"run": trained(), "tasks": tasks.split(",")[0]}
    assert main(["eval", *(a.format(**names) for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert message.format(**names) in error and error.startswith("scalelab: ") and error.count("\n") == 1
    assert not (trained() / "evaluations.jsonl").exists() and texts()
