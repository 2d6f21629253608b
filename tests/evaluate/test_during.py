"""`eval.tasks`: columns of a run's log, held to what `scalelab eval --tasks` says of its checkpoints."""

import json
import pathlib

import pytest

from scalelab import api
from scalelab import config as config_lib
from scalelab.errors import BadInput
from scalelab.evaluate import during, evaluations
from scalelab.evaluate.during import open_scorer
from scalelab.evaluate.tasks import read_task
from scalelab.record import records
from scalelab.sweep.pack import train_pack
from scalelab.train.resume.start import find_checkpoint
from scalelab.train.single import load_run_dataset, train_single
from scalelab.train.step import program
from tests.evaluate.runs import loaded, settings, trained
from tests.train.runs import untimed

ENDS = [
    {"context": context, "choices": [right, wrong], "answer": 0}
    for context, right, wrong in (
        ("for i in ", "r", "z"), ("while x:\n ", " ", "q"), ("    retur", "n", "e"), ("def f(x", ")", "\\")
    )
]  # fmt: skip
WORDS = [
    {"context": context, "completion": completion} for context, completion in (("pri", "n"), ("f", "o"), ("x", "q"))
]
SCHEDULE_FREE = {"optim__name": "schedule_free_adamw", "train__ema": 0.0, "schedule__name": "constant"}
OFTEN = {"eval__every_steps": 2, "checkpoint__every_steps": 2, "train__steps_per_dispatch": 2, "train__steps": 6}


def write_tasks(folder: pathlib.Path) -> str:
    """Two tasks, as `eval.tasks` names them."""
    for name, items in (("ends", ENDS), ("words", WORDS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    return f"{folder}/ends.jsonl,{folder}/words.jsonl"


def columns_of(folder) -> dict[int, dict[str, float]]:
    """`{step: {column: value}}` of the tasks in the log."""
    lines = [line for line in records.read_metrics(folder) if "val_loss" in line]
    return {line["step"]: {k: v for k, v in line.items() if k.startswith("task/")} for line in lines}


def check_like_checkpoints(folder, tasks) -> None:
    """Each line of the log has what `scalelab eval` finds in the checkpoint of its step."""
    logged = columns_of(folder)
    assert sorted(logged) == [2, 4, 6]
    for step, columns in logged.items():
        rows = api.evaluate(f"{folder}@{step}", tasks=tasks.split(","), sequences=1).rows
        scored = {f"task/{row['set']}": row["metrics"]["acc"] for row in rows if row["kind"] != "data"}
        assert columns == scored and len(scored) == 2, step


def test_a_state_is_scored_as_its_checkpoint(tmp_path):
    tasks = write_tasks(tmp_path)
    config, beats = settings(eval__tasks=tasks), []
    _, step, checkpoints, name = find_checkpoint(str(trained()))
    (like,) = program.restore_targets(config_lib.static(config), 1, "turn")
    state = checkpoints.load(lambda _: {name: like}, at=step).states[name]
    scorer = open_scorer(config, load_run_dataset(config))
    columns = scorer.score(config, state, lambda: beats.append(1))
    rows = evaluations.evaluate_tasks(loaded(), [read_task(path) for path in tasks.split(",")])
    assert columns == {f"task/{row['set']}": row["metrics"]["acc"] for row in rows} and len(beats) == 2
    assert (
        scorer.text
        == "eval.tasks: task/ends (4 items), task/words (3 items): accuracy at each evaluation, on one device"
    )


@pytest.mark.full
def test_each_line_has_what_eval_finds_in_the_checkpoint_of_its_step(tmp_path):
    tasks = write_tasks(tmp_path)
    whole = train_single(settings(**OFTEN, eval__tasks=tasks), tmp_path / "run", open_scorer=open_scorer)
    check_like_checkpoints(tmp_path / "run", tasks)
    logged = columns_of(tmp_path / "run")
    assert len({tuple(columns.values()) for columns in logged.values()}) > 1  # the weights are those of the step
    asked = iter([False, True])
    train_single(
        settings(**OFTEN, eval__tasks=tasks), tmp_path / "b", stop=lambda: next(asked), open_scorer=open_scorer
    )
    again = train_single(settings(**OFTEN, eval__tasks=tasks), tmp_path / "b", open_scorer=open_scorer)
    assert again["resumed_from"] == 4 and again["params_digest"] == whole["params_digest"]
    assert untimed(tmp_path / "b") == untimed(tmp_path / "run")


@pytest.mark.full
@pytest.mark.parametrize("values", [SCHEDULE_FREE, {"precision__name": "bf16"}])
def test_weights_are_those_that_a_checkpoint_hands_on(tmp_path, values):
    tasks = write_tasks(tmp_path)
    train_single(settings(**OFTEN, **values, eval__tasks=tasks), tmp_path / "run", open_scorer=open_scorer)
    check_like_checkpoints(tmp_path / "run", tasks)


def test_tasks_change_no_identity_and_old_configs_have_none():
    plain = settings()
    assert plain.eval.tasks == "" and open_scorer(plain, load_run_dataset(plain)) is None
    assert config_lib.identity(plain) == config_lib.identity(settings(eval__tasks="a.jsonl"))


REFUSED = {
    "{folder}/wrods.jsonl": "eval.tasks: no file '{folder}/wrods.jsonl'; did you mean '{folder}/words.jsonl'?",
    "{folder}/words.jsonl,{folder}/words.jsonl": "eval.tasks: two files of the name 'words'",
    "{folder}/long.jsonl": "eval.tasks: {folder}/long.jsonl, line 1: a choice of 40 tokens; the model reads 32",
}


@pytest.mark.parametrize("value", REFUSED)
def test_what_cannot_be_scored_is_refused_before_a_folder_is_written(tmp_path, value):
    write_tasks(tmp_path)
    (tmp_path / "long.jsonl").write_text(json.dumps({"context": "x", "completion": "y" * 40}))
    with pytest.raises(BadInput) as refusal:
        config = settings(eval__tasks=value.format(folder=tmp_path))
        train_single(config, tmp_path / "run", open_scorer=open_scorer)
    assert REFUSED[value].format(folder=tmp_path) in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_text_on_numbers_several_processes_and_a_caller_without_a_scorer_are_refused_by_name(tmp_path, monkeypatch):
    tasks = write_tasks(tmp_path)
    numbers = settings(data__source="synthetic", data__path="", data__n_tokens=20000, eval__tasks=tasks)
    with pytest.raises(BadInput, match=r"eval.tasks: data.source='synthetic' is a language of numbers"):
        open_scorer(numbers, load_run_dataset(numbers))
    with pytest.raises(BadInput, match=r"eval.tasks: nothing here scores tasks"):
        train_single(settings(eval__tasks=tasks), tmp_path / "run")
    text = settings(eval__tasks=tasks)
    data = load_run_dataset(text)
    monkeypatch.setattr(during.jax, "process_count", lambda: 2)
    with pytest.raises(BadInput, match=r"eval.tasks scores on one device of one process, and this run has 2 processes"):
        open_scorer(text, data)


@pytest.mark.full
def test_trials_of_one_program_have_their_own_columns(tmp_path):
    tasks = write_tasks(tmp_path)
    trials = {
        name: settings(**OFTEN, eval__tasks=tasks, sweep__pack="vmap", optim__peak_lr=lr)
        for name, lr in (("a", 0.03), ("b", 0.003))
    }
    assert train_pack(tmp_path / "sweep", "pack", trials) == {"a": "done", "b": "done"}
    for name in trials:
        check_like_checkpoints(tmp_path / "sweep" / "runs" / name, tasks)
    assert columns_of(tmp_path / "sweep" / "runs" / "a") != columns_of(tmp_path / "sweep" / "runs" / "b")
