"""Task files: what is read of them, and every mistake with its file and line."""

import json

import pytest

from scalelab.errors import BadInput
from scalelab.evaluate import tasks
from scalelab.experiments.tasks import make as made

GOOD = {"context": "a = (", "choices": [")", "]"], "answer": 0}


def write(path, *lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_a_choice_and_a_cloze_are_read_as_they_stand(tmp_path):
    path = write(
        tmp_path / "My task-2.jsonl",
        GOOD | {"id": 7},
        "",
        {"context": [1, 2], "choices": [[3], [4, 5], [6]], "answer": 2},
    )
    task = tasks.read_task(path)
    assert (task.name, task.kind, len(task.items)) == ("my_task_2", "choice", 2)
    assert task.items[0][:3] == ("a = (", [")", "]"], 0) and task.items[1] == ([1, 2], [[3], [4, 5], [6]], 2, 3)
    cloze = tasks.read_task(write(tmp_path / "c.jsonl", {"context": "im", "completion": "port"}))
    assert (cloze.kind, cloze.items[0][:3]) == ("cloze", ("im", ["port"], 0))
    assert cloze.fingerprint != task.fingerprint == tasks.read_task(path).fingerprint


MISTAKES = {
    "empty": ((), "holds no item"),
    "bad json": ((GOOD, '{"context": '), "line 2 is not JSON"),
    "a list": (("[1]",), "line 1 is not an object"),
    "misspelt": ((GOOD, GOOD | {"anwser": 1}), "line 2: unknown key 'anwser'; did you mean 'answer'"),
    "no choice": (
        ({"context": "a", "choices": ["b"], "answer": 0},),
        "line 1 needs a completion, or choices (two or more)",
    ),
    "neither": (({"context": "a"},), "line 1 needs a completion"),
    "both": ((GOOD | {"completion": "x"},), "line 1 has a completion and choices"),
    "empty choice": ((GOOD | {"choices": ["a", ""]},), "line 1: choice 1 is empty"),
    "empty completion": (({"context": "a", "completion": ""},), "line 1: completion is empty"),
    "answer": ((GOOD, GOOD | {"answer": 2}), "line 2: answer=2 is not a choice's number; 0 to 1"),
    "true": ((GOOD | {"answer": True},), "answer=True"),
    "twice": ((GOOD | {"choices": ["a", "a"]},), "line 1: two choices are the same"),
    "number": ((GOOD | {"context": 3},), "line 1: context is neither text nor a list of token ids"),
    "mixed": ((GOOD, {"context": "a", "completion": "b"}), "line 2 is a cloze, those before it a choice"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_name_file_and_line(tmp_path, case):
    lines, message = MISTAKES[case]
    path = write(tmp_path / "task.jsonl", *lines)
    with pytest.raises(BadInput) as caught:
        tasks.read_task(path)
    assert message in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path):
    write(tmp_path / "brackets.jsonl", GOOD)
    with pytest.raises(BadInput, match=r"no file .*bracket.jsonl'; did you mean '.*brackets.jsonl'"):
        tasks.read_task(tmp_path / "bracket.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"context": "a"}\n{"context": "\xe9"}\n')
    with pytest.raises(BadInput, match=r"latin.jsonl, line 2 is not UTF-8 \(byte 30 of the file\)"):
        tasks.read_task(tmp_path / "latin.jsonl")


@pytest.mark.parametrize("name", made.TASKS)
def test_the_committed_tasks_are_what_their_rules_make(name):
    path = f"experiments/tasks/{name}.jsonl"
    with open(path) as file:
        assert file.read() == made.task_lines(name, 150)
    task = tasks.read_task(path)
    assert len(task.items) == 150
    if task.kind == "choice":  # the place of the right one says nothing
        assert all(0.1 < sum(item.answer == i for item in task.items) / 150 < 0.4 for i in range(4))
