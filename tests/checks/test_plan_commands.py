"""The questions whose answers `make plan-commands` writes are commands of this code, and the page has all of them."""

import json
import shlex

import pytest

from checks.shared import RESULTS
from checks.speed import plan_commands
from scalelab.commands.plan.options import make_parser
from scalelab.config import split_overrides
from scalelab.errors import WorkFailed

STORED = json.loads((RESULTS / "plan_commands.json").read_text())


def test_the_page_is_of_these_questions_and_each_is_a_command():
    page = (RESULTS / "plan_commands.md").read_text()
    assert page == plan_commands.render_page(STORED)
    assert [row["question"] for row in STORED["rows"]] == list(plan_commands.QUESTIONS)
    for row, words in zip(STORED["rows"], plan_commands.QUESTIONS.values(), strict=True):
        assert shlex.split(row["command"]) == ["scalelab", "plan", *words]
        _, rest = split_overrides(list(words))
        assert make_parser(None).parse_args(rest).hardware and row["lines"]
        assert row["cpu_s"] < 20 or "DeepSeek" in row["question"]  # the limit is for 16,384 devices, dense


@pytest.mark.full
def test_a_question_is_measured_in_a_process_of_its_own(monkeypatch):
    monkeypatch.setitem(plan_commands.QUESTIONS, "tiny", ("--config=tiny", "--hardware=h100"))
    row = plan_commands.measure_command("tiny")
    assert 0.5 < row["cpu_s"] < 60 and row["peak_mb"] > 50
    assert row["lines"][0].startswith("fits: ") and len(row["lines"]) == 4
    monkeypatch.setitem(plan_commands.QUESTIONS, "tiny", ("--config=tiny", "--hardware=h10"))
    with pytest.raises(WorkFailed, match="--hardware=h10: "):
        plan_commands.measure_command("tiny")
