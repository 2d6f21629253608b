"""Checks of studies can fail: a wrong value planted into each is refused, or the page says that it can't say no."""

import pytest

from docs.gallery import committed_results
from scalelab.experiments.shared import RESULTS
from scalelab.experiments.studies import limits, outcome
from scalelab.experiments.studies.check_kinds import (
    KINDS,
    can_say_no,
    chosen_after,
    explain_verdicts,
    kind_of_check,
    planted_values,
    verdict_of,
)

CHECKS = [(name, row) for name, result in committed_results().items() for row in result["checks"]]
WIDE = 0  # checks whose limits can't say no, those that two cores can't test aside; fewer is better, more is a fault
UNTESTABLE = 5  # claims that two cores can't test; a page says why


def judge(row, value):
    """The row as the study would have written it, had it measured `value`."""
    fields = {key: row[key] for key in ("known", "source", "name", "low", "high", "unit")}
    return outcome.compare_with(**fields, measured=value)


@pytest.mark.parametrize(("name", "row"), CHECKS, ids=lambda each: each if isinstance(each, str) else each["name"][:40])
def test_a_planted_wrong_value_is_refused_or_the_page_says_that_it_is_not(name, row):
    planted = [judge(row, value)["inside"] for value in planted_values(row)]
    assert planted and any(planted) == (not can_say_no(row))
    if row["inside"] and any(planted):
        assert verdict_of(row) == ("not testable" if row.get("because") else "can't say no")
        page = (RESULTS / f"{name}.md").read_text()
        assert name == "incident" or " | ".join(outcome.check_cells(row)) in page
    assert judge(row, row["measured"])["inside"] == row["inside"] and kind_of_check(row) in KINDS


def test_few_checks_can_not_say_no():
    assert sum(verdict_of(row) == "can't say no" for _, row in CHECKS) == WIDE
    assert sum(verdict_of(row) == "not testable" for _, row in CHECKS) == UNTESTABLE


@pytest.mark.parametrize("study", limits.LIMITS)
def test_limits_do_not_follow_what_came_out(study):
    result = committed_results()[study]
    moved = [row | {"measured": 3 * row["measured"] + 1} for row in result["checks"]]
    ends = [
        [(row["low"], row["high"], row["known"]) for row in limits.judge_checks(study, result | {"checks": checks})]
        for checks in (result["checks"], moved)
    ]
    assert ends[0] == ends[1]
    assert limits.judge_checks(study, result) == result["checks"]  # the committed page is judged by this table
    assert set(limits.LIMITS[study]) <= {row["name"] for row in result["checks"]}


@pytest.mark.parametrize(("name", "row"), CHECKS, ids=lambda each: each if isinstance(each, str) else each["name"][:40])
def test_a_study_that_says_no_says_why(name, row):
    assert verdict_of(row) != "**no**" or row.get("reason"), f"{name} says no without a sentence (limits.py)"


def test_what_can_not_be_tested_and_why_it_says_no_stand_on_the_page():
    for name, result in committed_results().items():
        for line in explain_verdicts(result):
            assert f"\n{line}\n" in (RESULTS / f"{name}.md").read_text()
    (line,) = explain_verdicts({"checks": [check(0, "goal", 1, -1, 0) | {"name": "y", "reason": "too few"}]})
    assert line == "Says no: y: too few."
    row = check(0.34, "Porian et al. 2024", 0.2043, 0.17, 0.51) | {"because": "two budgets"}
    assert explain_verdicts({"checks": [row]}) == ["Not testable here: x, because two budgets."]
    assert verdict_of(row) == "not testable" and outcome.check_cells(row)[-1] == "not testable"
    page = outcome.replace_checks((RESULTS / "one_trunk.md").read_text(), committed_results()["one_trunk"])
    assert page == (RESULTS / "one_trunk.md").read_text()


def check(known, source, measured, low, high):
    return outcome.compare_with(known, source, "x", measured, low, high)


@pytest.mark.parametrize(("row", "kind", "verdict"), [  # cases that once said yes
    (check(0, "Hägele et al. 2024: a little below", 0.0043, -0.02, 0.005), "sign", "can't say no"),
    (check(0, "Hägele et al. 2024: a little below", 0.0043, -0.02, 0), "sign", "**no**"),
    (check(0.34, "Porian et al. 2024", 0.2043, 0.17, 0.51), "published", "can't say no"),
    (check(15.39, "Muennighoff et al. 2023", 26.3, 5.8, 1e6), "published", "can't say no"),
    (check(1, "an order of magnitude (McCandlish et al. 2018)", 0.21, 0.1, 10), "published", "can't say no"),
    (check(1, "rises: above 1", 8.65, 1, 1e4), "sign", "yes"),
    (check(0.5, "closed form", 0.4999, 0.49, 0.51), "closed form", "yes"),
    (check(0, "goal", 0.0427, -0.03, 0.03), "goal", "**no**"),
    (check(0.21, "independent runs, their 90 % interval", 0.2, 0.15, 0.3), "own interval", "yes"),
])  # fmt: skip
def test_kind_and_verdict(row, kind, verdict):
    assert kind_of_check(row) == kind and verdict_of(row) == verdict
    assert outcome.check_cells(row)[2] == kind and outcome.check_cells(row)[-1] == verdict
    assert kind_of_check(row | {"kind": "goal"}) == "goal"


@pytest.mark.parametrize(("high", "error", "verdict"), [
    (0.55, 0.05, "yes"), (0.55, 0.09, "yes"), (0.55, 0.1, "not testable"), (0.75, None, "can't say no"),
])  # fmt: skip
def test_a_check_that_its_rival_would_often_pass_tests_nothing(high, error, verdict, monkeypatch):
    """0.5 against 0.7: a normal value about 0.7 is below 0.55 in 0.1, 4.8 and 6.7 % of cases."""
    limit = limits.Limit(0.35, high, rival=0.7, error=error)
    monkeypatch.setitem(limits.LIMITS, "mine", {"x": limit})
    (row,) = limits.judge_checks("mine", {"checks": [check(0.5, "Porian et al. 2024", 0.52, 0.0, 1.0)]})
    assert verdict_of(row) == verdict and row["inside"]


def test_what_was_chosen_after_runs_is_said():
    assert chosen_after({"limits": "One model. Rates were chosen after runs of one seed each. Short."}) == [
        "Rates were chosen after runs of one seed each."
    ]
    assert chosen_after({"chosen_after": ["the window"], "limits": "Rates were chosen after all."}) == ["the window"]
    page = (RESULTS / "critical_batch.md").read_text()
    assert "Chosen after runs were seen: Target, batches and rates were chosen after runs of one seed each." in page
