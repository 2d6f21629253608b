"""The study of experts on losses of a known law, without training; and its runs."""

import json

import numpy as np
import pytest

from scalelab.experiments.studies.experts import __main__ as study
from scalelab.experiments.studies.experts import answers, runs

C, A, ALPHA, DELTA, B, BETA = 1.2, 20.0, -0.4, -0.15, 88.0, -0.4
BUDGETS = runs.QUICK_BUDGETS


def law(cell):
    expansion, width, _ = cell
    active, tokens = runs.measure_model(expansion, width)["active"], answers.count_tokens(cell)
    return C + A * expansion**DELTA * active**ALPHA + B * tokens**BETA


def count_by_hand(expansion, width):
    """`measure_model` without a program: of two blocks, a tied embedding and routers."""
    active = 264 * width + 24 * width**2 + (2 * width * expansion * runs.PER_TOKEN if expansion > 1 else 0)
    return {"active": active, "total": active + 16 * (expansion - 1) * width**2, "flops": 6.0 * active}


@pytest.fixture
def losses(monkeypatch):
    monkeypatch.setattr(runs, "measure_model", count_by_hand)
    rng = np.random.default_rng(0)
    return {
        cell: [law(cell) * np.exp(2e-3 * rng.standard_normal()) for _ in runs.SEEDS]
        for cell in runs.list_cells(BUDGETS)
    }


@pytest.mark.full
def test_cells_spend_their_budget_and_experts_add_no_active_parameter_but_the_router():
    for expansion, width, budget in (cell := (1, 16, 2e10), (8, 32, 8e10)):
        model = runs.measure_model(expansion, width)
        assert answers.count_tokens((expansion, width, budget)) * model["flops"] == pytest.approx(budget, rel=0.01)
        router = 2 * width * expansion * runs.PER_TOKEN if expansion > 1 else 0
        assert model["active"] - router == runs.measure_model(1, width)["active"]
        assert model["total"] - model["active"] == 2 * (expansion - 1) * 8 * width**2
    trial = runs.make_trial(cell, 1, "fit")
    assert trial.train.steps == runs.count_steps(cell) and trial.model.block == "sequential"


def test_names_tell_all_runs_apart_and_only_balances_differ_from_the_grid(monkeypatch):
    monkeypatch.setattr(runs, "measure_model", count_by_hand)
    grid = {runs.name_trial(cell, seed) for cell in runs.list_cells(BUDGETS) for seed in runs.SEEDS}
    balanced = runs.make_balanced(BUDGETS[:1])
    assert len(grid) == 108 and len(balanced) == 6
    assert not grid & {*balanced, runs.name_trial(runs.larger_cell(BUDGETS), 0)}
    rates = {(each.model.balance_rate, each.model.balance_weight) for each in balanced.values()}
    assert rates == {(0.0, 0.01), (0.0, 0.0)}


@pytest.mark.full
def test_the_law_is_recovered_and_predicts_the_larger_run(losses):
    fitted = answers.fit_law(losses)
    assert fitted.params["delta"] == pytest.approx(DELTA, abs=0.05)
    predicted = answers.predict_cell(fitted, runs.larger_cell(BUDGETS))
    low, high = predicted["interval90"]
    assert low < law(runs.larger_cell(BUDGETS)) < high and high / low < 1.05


def test_page_and_checks_follow_from_the_losses(losses):
    rows = [row for budget in BUDGETS for row in answers.compare_with_dense(losses, budget)]
    assert answers.count_falls(rows[-4:]) == 3 and rows[-1]["high"] < 0
    arms = {
        arm: [{"loss": 2.0 + seed / 100, "imbalance": 1.5 + i, "entropy": 0.9, "idle": 0.0} for seed in runs.SEEDS]
        for i, arm in enumerate(runs.BALANCES)
    }
    balance = answers.compare_balances(arms)
    assert balance["differences"]["imbalance"]["mean"] == pytest.approx(-1)
    expansion, width, budget = runs.larger_cell(BUDGETS)
    predicted = {"expansion": expansion, "width": width, "budget": budget, "loss": 2.0, "measured": 2.02,
                 "interval90": [1.9, 2.1], "params": {"c": 1.2}}  # fmt: skip
    cells = [{"expansion": x, "width": w, "budget": b, "losses": each} for (x, w, b), each in losses.items()]
    result = {"budgets": list(BUDGETS), "seeds": 3, "rows": rows, "cells": cells, "predicted": predicted,
              "balance": balance, "held": {"8e+10 FLOPs": {"mean": 0.002, "worst": -0.011, "alpha": -2.5},
              "d_model 32": {"reason": "two sizes"}}}  # fmt: skip
    assert all(check["inside"] for check in study.list_checks(result))
    worse = [row | {"high": 0.01} for row in rows]
    worse[-1]["loss"] = 9.0
    predicted["measured"] = 2.2
    failed = study.list_checks(result | {"rows": worse})
    assert [check["inside"] for check in failed] == [False, False, False, False, True, True]
    assert "reached 2.200, outside of it" in study.describe_finding(result)
    text = "\n".join(study.describe(result))
    assert "| 8e+10 FLOPs | +0.2% | -1.1% | -2.50 |" in text and "| d_model 32 | not determined: two sizes |" in text
    assert "| 8e+10 | 8 |" in text and "(edge)" in text and json.dumps(result)
    assert len(study.plot_losses(result).axes) == 2
