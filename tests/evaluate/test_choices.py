"""Scores of choices: rows by a plain forward each, metrics by hand, borders of tokens, items that are too long."""

import dataclasses
import json

import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.evaluate import choices, subject, tasks
from scalelab.evaluate.choices import ChoiceRow, ChoiceScore, score_rows, task_metrics
from scalelab.evaluate.tasks import Task, TaskItem
from tests.evaluate.runs import loaded, log_softmax, plain


def task(tmp_path, *rows):
    path = tmp_path / "task.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tasks.read_task(path)


def many(chance, count):
    """Rows of 2 to 33 tokens."""
    lengths = chance.integers(2, 34, count)
    tokens = [chance.integers(0, 256, n).astype(np.int32) for n in lengths]
    return [ChoiceRow(t, int(chance.integers(1, len(t))), 1) for t in tokens]


@pytest.mark.slow
def test_each_choice_has_the_score_of_its_row_alone():
    model, rows = loaded(), many(np.random.default_rng(0), 60)
    before = subject._token_losses._cache_size()
    result = score_rows(model, rows, 0)
    assert subject._token_losses._cache_size() - before <= 2  # of 16 and of 32 tokens
    for row, scored in zip(rows, result, strict=True):
        filled = np.zeros((1, 32), np.int32)
        filled[0, : len(row.tokens) - 1] = row.tokens[:-1]  # what follows is not seen
        logs = log_softmax(plain(model.static.model, model.params, filled))[0]
        here = np.arange(row.start - 1, len(row.tokens) - 1)
        wanted = -logs[here, row.tokens[row.start :]]
        assert scored.nats == pytest.approx(wanted.sum(), rel=1e-5) and scored.tokens == len(wanted)
        assert scored.greedy == (logs[here].argmax(-1) == row.tokens[row.start :]).all()


@pytest.mark.full
def test_without_padding_at_all_it_is_the_same():
    model, (row, *_) = loaded(), many(np.random.default_rng(1), 1)
    logs = log_softmax(plain(model.static.model, model.params, row.tokens[None, :-1]))[0]
    wanted = -logs[np.arange(len(row.tokens) - 1), row.tokens[1:]][row.start - 1 :].sum()
    assert score_rows(model, [row], 0)[0].nats == pytest.approx(wanted, rel=1e-5)


@pytest.mark.full
def test_a_file_is_scored_from_the_separator_on(tmp_path):
    model = loaded()
    item = {"context": "x = f(", "choices": [")\n", "é]"], "answer": 1}
    result = choices.encode_task(model, task(tmp_path, item))
    first, second = result.items[0]
    assert first.tokens.tolist() == [0, *b"x = f(", *b")\n"] and (first.start, first.bytes) == (7, 2)
    assert second.tokens.tolist() == [0, *b"x = f(", *"é]".encode()] and (second.start, second.bytes) == (7, 3)
    masked = model._replace(static=dataclasses.replace(model.static, documents="mask"))
    assert choices.encode_task(masked, task(tmp_path, item)).items[0][0].tokens.tolist() == [*b"x = f(", *b")\n"]
    with pytest.raises(BadInput, match=r"task.jsonl, line 1: an empty context, and a document's first token is never"):
        choices.encode_task(masked, task(tmp_path, item | {"context": ""}))
    assert choices.encode_task(model, task(tmp_path, item | {"context": ""})).items[0][0].start == 1


def test_what_is_too_long_loses_its_beginning_and_says_so(tmp_path):
    model = loaded()
    long = task(tmp_path, {"context": "abc" * 20, "choices": ["x", "yz"], "answer": 0})
    one, two = choices.encode_task(model, long).items[0]
    assert (len(one.tokens), one.start, one.cut) == (33, 32, True) and (two.start, bytes(two.tokens[-3:].tolist())) == (
        31,
        b"cyz",
    )
    result = choices.evaluate_task(model, long, choices.encode_task(model, long))
    assert (result["cut"], result["items"]) == (1, 1)
    with pytest.raises(BadInput, match=r"line 1: a choice of 40 tokens; the model reads 32"):
        choices.encode_task(model, task(tmp_path, {"context": "a", "choices": ["x", "y" * 40], "answer": 0}))
    with pytest.raises(BadInput, match=r"line 1: token id 300 is outside the vocabulary of 256"):
        choices.encode_task(model, task(tmp_path, {"context": [1], "choices": [[2], [300]], "answer": 0}))
    with pytest.raises(BadInput, match="must all be text, or all token ids"):
        choices.encode_task(model, task(tmp_path, {"context": "a", "choices": [[2], [3]], "answer": 0}))


def test_a_token_across_the_border_is_asked_of_every_choice():
    """With a token for "ab", the context "xa" is two tokens alone and shares one with "xab"."""

    def encode(text):
        return np.frombuffer(text.encode().replace(b"ab", b"\x01"), np.uint8).astype(np.int32)

    one, two = choices._rows(TaskItem("xa", ["b", "c"], 0, 1), encode, [0], 32)
    assert one.tokens.tolist() == [0, ord("x"), 1] and one.start == 2
    assert two.tokens.tolist() == [0, ord("x"), ord("a"), ord("c")] and two.start == 2


def test_what_cannot_be_encoded_is_named(tmp_path):
    whole = task(tmp_path, {"context": "a", "completion": "b"}, {"context": "c", "completion": "b"})
    half = whole._replace(items=[whole.items[0], whole.items[1]._replace(context="\ud800")])
    with pytest.raises(BadInput, match=r"task.jsonl, line 2: .*surrogates not allowed"):
        choices.encode_task(loaded(), half)
    with pytest.raises(BadInput, match=r"task.jsonl, line 2 is not JSON: half a letter \('\\ud800'\)"):
        task(tmp_path, {"context": "a", "completion": "b"}, {"context": "\ud800", "completion": "b"})


def test_metrics_by_hand():
    """Two items: the first is right by any measure; the second a byte, but not a token, and not in all."""
    first = [ChoiceScore(2.0, 2, 2, True), ChoiceScore(4.0, 2, 2, False)]
    second = [ChoiceScore(3.0, 2, 2, False), ChoiceScore(4.0, 2, 8, False), ChoiceScore(2.5, 1, 1, False)]
    result = task_metrics([first, second], [0, 1], "choice")
    assert (result["acc"], result["acc_token"], result["acc_raw"], result["error"]) == (1.0, 0.5, 0.5, 0.0)
    assert result["acc_se"] == 0 and result["chance"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    p = [1 / (1 + np.exp(-2.0)), np.exp(-4) / (np.exp(-3) + np.exp(-4) + np.exp(-2.5))]
    assert result["p_correct"] == pytest.approx(np.mean(p))
    assert result["bpb"] == pytest.approx((2 / 2 + 4 / 8) / 2 / np.log(2))
    cloze = task_metrics(
        [[ChoiceScore(1.0, 1, 1, True)], [ChoiceScore(2.0, 2, 4, False)], [ChoiceScore(0.5, 1, 2, False)]],
        [0, 0, 0],
        "cloze",
    )
    assert cloze["acc"] == pytest.approx(1 / 3) and cloze["acc_se"] == pytest.approx(
        np.std([1, 0, 0], ddof=1) / np.sqrt(3)
    )
    assert cloze["p_correct"] == pytest.approx(np.exp([-1.0, -2.0, -0.5]).mean()) and "chance" not in cloze
    assert np.isnan(task_metrics([[ChoiceScore(1.0, 1, 1, True)]], [0], "cloze")["acc_se"])


def test_ids_are_scored_on_data_without_text():
    model = loaded()
    config = model.config.copy_and_resolve_references()
    config.data.source = "synthetic"
    numbers = model._replace(config=config)
    ids = Task("t", "choice", [TaskItem([3, 4], [[5], [6, 7]], 0, 1)], "f", "t.jsonl")
    assert choices.encode_task(numbers, ids).items[0][1].tokens.tolist() == [0, 3, 4, 6, 7]
    text = Task("t", "choice", [TaskItem("ab", ["c", "d"], 0, 1)], "f", "t.jsonl")
    with pytest.raises(BadInput, match="no text to encode"):
        choices.encode_task(numbers, text)
