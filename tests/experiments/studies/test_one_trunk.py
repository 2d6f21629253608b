"""One trunk: FLOPs against the closed form and real branches, exponents and slopes that were put in, the page."""

import numpy as np
import pytest

from scalelab.experiments.shared import find_runs, train_packs
from scalelab.experiments.studies.one_trunk import __main__ as study
from scalelab.experiments.studies.one_trunk import compare, drop, figure, grid
from scalelab.record import records

BUDGETS, TOKENS = grid.list_cells(study.WIDTHS)
CELLS = sorted({*BUDGETS, *TOKENS})


def test_cells_of_a_budget_cost_the_same_and_decays_begin_at_checkpoints():
    flops = np.array([grid.count_flops(cell) for cell in BUDGETS]).reshape(-1, 3)
    np.testing.assert_allclose(flops, np.broadcast_to(5.05e10 * np.array(grid.DOUBLINGS), flops.shape), rtol=0.03)
    assert all(grid.branch_step(steps) % grid.EVERY == 0 for _, steps in CELLS)
    assert {steps for _, steps in TOKENS} == {200, 400, 800} and len(TOKENS) == 9


def test_what_is_saved_is_the_closed_form():
    """A trunk of 0.8 x 4, decays of 0.2 x (1 + 2 + 4), against 1 + 2 + 4."""
    assert grid.count_saved(BUDGETS) == pytest.approx(1 - (0.8 * 4 + 0.2 * 7) / 7)
    assert grid.count_saved([(16, 320)]) == pytest.approx(0)


def test_trunks_end_where_the_longest_decay_begins_and_branches_keep_their_rate(tmp_path):
    trunks = grid.make_trunks(CELLS, (0, 1))
    assert trunks["trunk-d24-seed1"].train.steps == 2048
    branches = grid.make_branches(CELLS, trunks, {name: tmp_path / name for name in trunks})
    assert len(branches) == 2 * len(CELLS)
    branch = branches["d24-steps640-seed1"]
    assert branch.train.branch_from == f"{tmp_path}/trunk-d24-seed1@512" and branch.schedule.decay_steps == 128
    assert branch.optim.peak_lr == trunks["trunk-d24-seed1"].optim.peak_lr and branch.train.seed == 1
    alone = grid.make_independent(CELLS, (1,))
    assert alone["d24-steps640-seed1"].optim.peak_lr > branch.optim.peak_lr > alone["d24-steps2560-seed1"].optim.peak_lr
    assert alone["d24-steps640-seed1"].schedule.decay_steps == 128


@pytest.mark.slow
def test_real_branches_take_the_steps_that_are_counted(tmp_path):
    cells = [(16, 40), (16, 80)]
    trunks = grid.make_trunks(cells, (0,))
    train_packs(tmp_path / "trunks", trunks)
    train_packs(tmp_path / "branches", grid.make_branches(cells, trunks, find_runs(tmp_path / "trunks")))
    spent = sum(compare.trained_flops(tmp_path / part) for part in ("trunks", "branches"))
    assert spent == pytest.approx((1 - grid.count_saved(cells)) * sum(map(grid.count_flops, cells)))
    losses = grid.read_losses(tmp_path / "branches", cells, (0,))
    trunk = records.read_record(find_runs(tmp_path / "trunks")["trunk-d16-seed0"])["val_loss"]
    assert losses[16, 80][0] < trunk < losses[16, 40][0] < np.log(256)


def surface(cell, seed, rng=None):
    """A loss whose best N is 60 C^0.25 and which falls as the 0.1th power of C; seeds scatter by 0.1 %."""
    C, N = grid.count_flops(cell), grid.count_parameters(cell[0])
    return 20 * C**-0.1 * np.exp(0.05 * np.log(N / (50 * C**0.25)) ** 2 + 1e-3 * rng.standard_normal())


def test_the_exponent_of_the_best_size_is_found_again():
    rng = np.random.default_rng(0)
    fitted = compare.fit_exponent({cell: [surface(cell, seed, rng) for seed in range(3)] for cell in BUDGETS})
    low, high = fitted["interval"]
    assert low < 0.25 < high and high - low < 0.4
    falling = {cell: [-0.1 * np.log(grid.count_parameters(cell[0])) + 2] * 3 for cell in BUDGETS}
    noisy = {cell: [loss + 1e-4 * seed for seed, loss in enumerate(each)] for cell, each in falling.items()}
    assert compare.fit_exponent(noisy) is None  # minima at the edge


def test_slopes_differences_and_drops_are_those_that_were_put_in():
    losses = {cell: [5 * cell[1] ** -0.2, 5 * cell[1] ** -0.3] for cell in TOKENS}
    slopes = compare.token_slopes(losses)
    assert slopes["16"]["mean"] == pytest.approx(-0.25) and slopes["mean"]["error"] == pytest.approx(0.05)
    shifted = {cell: [a + 0.01, b + 0.03] for cell, (a, b) in losses.items()}
    overall = compare.mean_over_cells(shifted, losses)
    assert overall["mean"] == pytest.approx(0.02) and overall["error"] == pytest.approx(0.01)
    rows = [
        {"lr": lr, "fall": lr * (1 - share), "drops": [lr**0.5 * (1 - share), 2 * lr**0.5 * (1 - share) ** 2]}
        for lr in drop.LRS
        for share in drop.FINAL_SHARES
    ]
    exponents = drop.fit_exponents(rows)
    assert exponents["within"]["mean"] == pytest.approx(1.5) and exponents["across"]["mean"] == pytest.approx(0.5)


def test_checks_finding_page_and_figure_follow_from_the_result():
    rng = np.random.default_rng(1)
    own, branch = ({cell: [surface(cell, seed, rng) for seed in range(3)] for cell in CELLS} for _ in range(2))
    rows = [
        {"lr": lr, "fall": lr * (1 - share), "drops": [lr * (1 - share) * f for f in (1, 2, 3)]}
        for lr in drop.LRS
        for share in drop.FINAL_SHARES
    ]
    arms = {"own": own, "branch": branch}
    result = {
        "seeds": 3, "cells": compare.list_differences(branch, own), "overall": compare.mean_over_cells(branch, own),
        "isoflop": {arm: compare.fit_exponent({c: each[c] for c in BUDGETS}) for arm, each in arms.items()},
        "slopes": {arm: compare.token_slopes({c: each[c] for c in TOKENS}) for arm, each in arms.items()},
        "saved": 0.4, "planned_saving": 0.4, "saved_isoflop": 0.34, "drops": rows,
        "drop_exponents": drop.fit_exponents(rows),
    }  # fmt: skip
    checks = study.list_checks(result)
    assert len(checks) == 6 and checks[-1]["measured"] == pytest.approx(1) and checks[-1]["inside"]
    assert "save 40% of the FLOPs (34% of the IsoFLOP grid alone)" in study.describe_finding(result)
    assert any(line.startswith("| 40 | 1120 |") for line in study.describe(result))
    assert len(figure.plot_result(result).axes) == 3
    without = result | {"isoflop": {"own": None, "branch": None}}
    assert len(study.list_checks(without)) == 5 and "no exponent" in study.describe_finding(without)
