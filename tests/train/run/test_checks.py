"""The checks of a run's start: in which order they refuse, what they note, and that nothing is written before."""

import pytest

from scalelab.__main__ import main
from scalelab.record import records
from scalelab.train.lineage.spec import make_train_spec
from scalelab.train.run.opening import checks
from scalelab.train.run.opening.checks import Candidate
from scalelab.train.run.run import IMPORTED_STATUS
from scalelab.train.single import load_run_dataset
from tests.train.resume.test_compatibility import SMALL, config
from tests.train.runs import ROOT

FAULTS_OF_USER = """
def below(step, h):
    return -1.0 + 0 * step

def many(**_):
    return {"values": [1.0, 2.0]}
"""
# (the change that is refused, words of its line), in the order of refusals; the last is the folder's.
FAULTS = [
    ({"schedule.name": "faults_of_user:below"}, "schedule.name='faults_of_user:below': its lr"),
    ({"optim.name": "sgd", "optim.clip": "spam"}, "optim.clip='spam' clips to the second moment"),
    ({"train.metrics": "faults_of_user:many"}, "train.metrics='faults_of_user:many'"),
    ({"data.unique_tokens": 10**9}, "data.unique_tokens=1000000000: no source has as many tokens"),
    ({}, "holds imported weights, not a run"),
]


def test_the_first_check_of_the_list_refuses_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    (tmp_path / "faults_of_user.py").write_text(FAULTS_OF_USER)
    monkeypatch.chdir(tmp_path)
    records.write_json(tmp_path / "run" / "config.json", config().to_dict())
    records.write_json(tmp_path / "run" / "record.json", {"name": "run", "status": IMPORTED_STATUS, "steps": 0})
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for i, (_, line) in enumerate(FAULTS):
        changes = SMALL | {key: value for change, _ in FAULTS[i:] for key, value in change.items()}
        words = [f"--config.{key}={value}" for key, value in changes.items()]
        assert main(["train", f"--config={ROOT}/configs/tiny.py", "--workdir=run", *words]) == 2
        err = capsys.readouterr().err
        assert line in err and err.count("\n") == 1
        after = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.name != ".lock"}
        assert after == before


def test_notes_stand_in_the_order_of_the_checks_and_facts_go_into_the_record():
    made = config(
        data__unique_tokens=192, precision__name="tf32", optim__peak_lr=3.0, model__window=16, log__remat="for a test"
    )
    data = load_run_dataset(made)
    notes, facts = checks.run_checks(Candidate(make_train_spec(made, data.hparams), data))
    starts = [(note.kind, note.text.split()[0]) for note in notes]
    assert starts == [
        ("chosen", "adamw's"), ("chosen", "set"), ("chosen", "cosine"), ("chosen", "validation:"),
        ("chosen", "sources"),
        ("no_effect", "model.window=16"), ("LR", "optim.peak_lr=3"), ("chosen", "attention:"), ("chosen", "remat:"),
        ("precision", "precision.name='tf32'"),
    ]  # fmt: skip
    assert list(facts) == ["mixture", "sources"] and facts["sources"]["synthetic"]["unique_tokens"] == 192


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_every_check_passes_a_plain_run(check):
    made = config()
    data = load_run_dataset(made)
    assert all(note.kind == "chosen" for note in check(Candidate(make_train_spec(made, data.hparams), data)))


def test_files_of_a_glob_whose_names_say_that_they_are_held_out_are_asked_about(tmp_path):
    for name in ("train.txt", "val.txt", "evaluate.txt"):
        (tmp_path / name).write_text("some text " * 200)

    def notes(source, path):
        run = Candidate(make_train_spec(config(data__source=source, data__path=path)), None)
        return [note.text for note in checks.warn_of_held_out_names(run) if note.text]

    (line,) = notes("text", f"{tmp_path}/*.txt")
    assert line.startswith(f"data.path takes {tmp_path}/val.txt for the corpus")
    assert f"--source={tmp_path}/evaluate.txt,{tmp_path}/train.txt --val-source={tmp_path}/val.txt" in line
    assert notes("text", f"{tmp_path}/train.txt,{tmp_path}/val.txt") == []  # named one by one: it is meant
    assert notes("stdlib", "") == []
