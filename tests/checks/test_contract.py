"""The cases of the contract: each builds, plants what it says, and is scored by its rules; nothing is trained."""

import ast
import pathlib
import re
from collections import Counter

import pytest

import checks.diagnosis.contract.__main__ as door
import checks.diagnosis.contract.later.door as later
from checks.diagnosis.contract import doctored, runs
from checks.diagnosis.contract.case import BASE, HEALTHY, LINES, Answer
from checks.diagnosis.contract.score import is_right, score_answer
from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import tiny
from tests.quick import one_in

HALVES = {half: door.load_cases(half) for half in (*door.HALVES, *later.HALVES)}
FOLDER = pathlib.Path(runs.__file__).parent
CASES = [pytest.param(half, case, id=case.name) for half, cases in HALVES.items() for case in cases.values()]


def test_every_line_has_two_faults_in_each_half_and_names_are_unique():
    names = Counter(case.name for cases in HALVES.values() for case in cases.values())
    assert [name for name, n in names.items() if n > 1] == []
    for half in ("open", "sealed"):
        by_line = Counter(case.line for case in HALVES[half].values())
        assert set(by_line) == {*LINES, HEALTHY} and min(by_line.values()) >= 2
    by_line = Counter(case.line for cases in HALVES.values() for case in cases.values())
    assert by_line[HEALTHY] >= 60 and sum(by_line[line] for line in LINES) >= 40


@pytest.mark.parametrize("half", HALVES)
def test_no_case_hides_another_of_its_name(half):
    """By the files: a dict of names would keep the last of two."""
    texts = [path.read_text() for path in (FOLDER / half).glob("*.py")]
    written = sum(len(re.findall(r"^    (?:Case|_fault|_odd)\(", text, re.MULTILINE)) for text in texts)
    assert written == len(HALVES[half])


@pytest.mark.parametrize(("half", "case"), one_in(6, CASES))
def test_a_case_builds_at_its_sizes(half, case):
    for changes in (case.changes, {**case.changes, **(case.later or {})}, {**case.changes, **(case.without or {})}):
        for size in case.sizes:
            values = {key: _importable(half, value) for key, value in {**BASE, **size, **changes}.items()}
            assert config_lib.static(config_lib.resolve(override(tiny.get_config(), values)))


def _importable(half, value):
    return (
        value.replace("mine:", f"{door.__package__}.{half.replace('/', '.')}.mine:")
        if isinstance(value, str)
        else value
    )


@pytest.mark.parametrize(("half", "case"), CASES)
def test_a_case_plants_what_it_says(half, case):
    for edit in (*case.edits, *case.later_edits):
        text = (runs.ROOT / "scalelab" / edit.file).read_text()
        ast.parse(runs.edited(edit, text))
        assert edit.new not in text
    changed = case.edits or case.later_edits or case.doctor or case.without or case.without is None
    assert (case.answer is None) == (case.line == HEALTHY) and (changed or case.line == HEALTHY)
    assert not case.doctor or hasattr(doctored, case.doctor)
    assert not case.answer or (case.harm and case.answer.words)
    ast.parse(runs.config_text({**BASE, **case.changes}))


def test_an_edit_that_no_longer_fits_is_said(tmp_path):
    edit = runs.Edit("errors.py", "no such line anywhere", "another")
    with pytest.raises(AssertionError, match="0 times, not once"):
        runs.fork((edit,), tmp_path / "fork")


@pytest.mark.parametrize(("name", "cache"), [("positions by pairs", False), ("in the order of the files", True)])
def test_a_fork_is_an_edited_copy_with_a_cache_of_its_own_where_data_are_read_otherwise(name, cache, tmp_path):
    edits = HALVES["open"][name].edits
    package = runs.fork(edits, tmp_path / "fork")
    for edit in edits:
        assert edit.new in (package / "scalelab" / edit.file).read_text()
        assert edit.new not in (runs.ROOT / "scalelab" / edit.file).read_text()
    assert (package / "cache").exists() == cache
    assert runs.fork((), tmp_path / "none") == runs.ROOT and not (tmp_path / "none").exists()


def test_an_answer_is_right_by_its_words_and_not_with_a_wrong_knob():
    answer = Answer(("too low", "order"), ("peak_lr",), ("clip_norm",))
    right = {"cause": "lr_too_low", "evidence": "a 30th of the siblings' LR", "knob": "optim.peak_lr=1e-2"}
    wrong = {"cause": "over_clipping", "evidence": "the border is reached", "knob": "optim.clip_norm=1"}
    assert is_right(answer, right) and not is_right(answer, right | {"knob": "optim.clip_norm=1"})
    assert not is_right(answer, wrong), "a word inside another one says nothing"
    assert score_answer(answer, [wrong, right]) == {"place": 2, "wrong_knobs": ["clip_norm"], "good_knob": False}
    assert score_answer(answer, [right, wrong]) == {"place": 1, "wrong_knobs": [], "good_knob": True}
    assert score_answer(answer, []) == {"place": 0, "wrong_knobs": [], "good_knob": False}


def test_goals_count_failures_alarms_and_wrong_knobs():
    fault = {"line": "code", "place": 1, "wrong_knobs": [], "findings": [{"cause": "x"}]}
    quiet = {"line": HEALTHY, "findings": []}
    rows = [fault] * 32 + [fault | {"place": 0, "findings": []}] * 8 + [quiet] * 57 + [quiet | {"findings": [1]}] * 3
    counts = door.count_rows(rows)
    assert (counts["first"], counts["silent"], counts["alarms"], counts["failed"]) == (32, 8, 3, 0)
    assert door.passed(counts)
    assert not door.passed(door.count_rows([*rows, quiet | {"findings": [1]}]))
    assert not door.passed(door.count_rows([*rows[1:], fault | {"wrong_knobs": ["peak_lr"]}]))
    assert not door.passed(door.count_rows([*rows, {"line": "code", "failed": "train ended with 2"}]))


def test_a_result_is_kept_and_an_unknown_name_is_refused(tmp_path, monkeypatch, capsys):
    ran = []
    row = {"line": HEALTHY, "val_loss": 2.0, "exit": 0, "findings": [], "question": ""}
    monkeypatch.setattr(door, "judge_case", lambda case, half, number, place: ran.append(case.name) or row)
    command = ["--only=plain; wsd", f"--workdir={tmp_path}"]
    assert door.main(command) == 0 == door.main(command)
    assert ran == ["plain", "wsd"]
    assert "2 healthy runs, alarms 0" in capsys.readouterr().out
    assert door.main(["--only=plane", f"--workdir={tmp_path}"]) == 2
    assert "no case 'plane' in open" in capsys.readouterr().err and ran == ["plain", "wsd"]
    assert door.main([*command, "--without-live"]) == 0 and ran == ["plain", "wsd"] * 2  # another answer, kept apart


@pytest.mark.slow
def test_a_case_runs_by_commands(tmp_path, monkeypatch):
    case = HALVES["open"]["rows twice in a batch"]
    loss = runs.train_case(case, "open", case.sizes[0], 0, tmp_path / "case")
    assert 2.0 < loss < 4.0
    assert runs.diagnose_case(case, tmp_path / "case")["exit"] in (0, 1)
