"""Approach 1: hulls against scipy's, exponents against the closed form, Gemstones' own checkpoints, run folders."""

import functools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import ConvexHull

from scalelab import records
from scalelab.errors import BadInput
from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, allocation_exponents, loss_at, optimal_allocation
from scalelab.laws.solve.optimum import FitError
from scalelab.laws.use.envelope import envelope_frontier, fit_envelope, hull_frontier, lower_hull, training_curves
from tests.tables import TABLES, table_path

LAW = ChinchillaParams(1.7, 400.0, 1500.0, 0.34, 0.37)


def training(sizes=40, checkpoints=200, low=1e7, high=1e10):
    """Columns run, C, N, D, loss: every size along one grid of tokens, exactly on the law."""
    N = np.repeat(np.geomspace(low, high, sizes), checkpoints)
    D = np.tile(np.geomspace(1e8, 1e12, checkpoints), sizes)
    run = np.repeat([f"run-{i}" for i in range(sizes)], checkpoints)
    return run, 6 * N * D, N, D, loss_at(LAW, N, D)


@functools.cache
def fitted(method, sizes):
    return fit_envelope(*training(sizes, 100), method, bootstrap=60)


@pytest.mark.parametrize(("method", "within"), [("hull", 1e-3), ("envelope", 2e-3)])
def test_exponents_of_a_known_law(method, within):
    result = fitted(method, 40)
    a, b = allocation_exponents(LAW)
    assert (result.a, result.b) == (pytest.approx(a, abs=within), pytest.approx(b, abs=within))
    best = optimal_allocation(LAW, 1e21)
    assert result.N_coefficient * 1e21**result.a == pytest.approx(float(best.N), rel=0.05)
    assert result.D_coefficient * 1e21**result.b == pytest.approx(float(best.D), rel=0.05)
    assert result.a_interval[0] <= result.a <= result.a_interval[1]
    assert result.a_interval[1] - result.a_interval[0] < 0.01


@pytest.mark.parametrize("method", ["hull", "envelope"])
def test_a_coarser_grid_of_sizes_is_less_exact_and_its_interval_says_so(method):
    coarse, fine = fitted(method, 12), fitted(method, 40)
    assert abs(coarse.a - allocation_exponents(LAW)[0]) < 0.01
    assert np.ptp(coarse.a_interval) > 2 * np.ptp(fine.a_interval)


def test_the_frontier_is_never_above_any_checkpoint():
    run, C, N, D, loss = training(15, 60)
    for frontier in (hull_frontier(run, C, N, D, loss), envelope_frontier(run, C, N, D, loss)):
        at = np.interp(np.log(C), np.log(frontier.C), np.log(frontier.loss))
        inside = (frontier.C[0] <= C) & (frontier.C[-1] >= C)
        assert (np.log(loss)[inside] >= at[inside] - 2e-4).all()  # curves between checkpoints are interpolated
        np.testing.assert_allclose(6 * frontier.N * frontier.D, frontier.C, rtol=1e-6)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(5, 60))
def test_lower_hull_is_scipys(seed, count):
    x, y = np.random.default_rng(seed).random((2, count))
    whole = ConvexHull(np.stack([x, y], axis=1)).vertices
    left, right = x.argmin(), x.argmax()
    line = y[left] + (y[right] - y[left]) * (x - x[left]) / (x[right] - x[left])
    below = [i for i in whole if y[i] <= line[i]]
    assert set(lower_hull(x, y)) == set(below) | {left, right}


def test_lower_hull_keeps_the_lowest_of_equal_x():
    assert lower_hull(np.array([0.0, 0.0, 1.0]), np.array([1.0, 0.0, 0.5])).tolist() == [1, 2]


def test_smallest_and_largest_sizes_are_left_out():
    """Kept in, the ends flatten the power law: there the best size lies outside the grid."""
    columns = training(12)
    result = fit_envelope(*columns, "envelope", bootstrap=0)
    assert result.edges > 0 and result.a_interval is None
    assert not {columns[2].min(), columns[2].max()} & set(result.frontier.N)
    whole = envelope_frontier(*columns)
    naive, _ = np.polyfit(np.log(whole.C), np.log(whole.N), 1)
    truth = allocation_exponents(LAW)[0]
    assert abs(result.a - truth) < abs(naive - truth)


def test_a_run_that_got_worse_is_not_on_the_frontier():
    run, C, N, D, loss = training(12, 30)
    worse = np.append(loss, loss.min() + 1.0)
    frontier = hull_frontier(
        np.append(run, "run-5"), np.append(C, 10 * C.max()), np.append(N, N[0]), np.append(D, 1e13), worse
    )
    assert frontier.C.max() <= C.max() and (np.diff(frontier.loss) < 0).all()


def test_gemstones_checkpoints():
    """Their 22 runs: the hull uses few checkpoints, and both ways see N grow about as fast as D, or faster."""
    table_path("gemstones/hot_100b+.jsonl")
    lines = [json.loads(line) for line in (TABLES / "gemstones" / "hot_100b+.jsonl").read_text().splitlines()]
    N, D, loss = (
        np.array([float(line[key]) for line in lines]) for key in ("params_active_precise", "tokens", "final_loss")
    )
    run = np.array([line["run_name"] for line in lines])
    result = {method: fit_envelope(run, 6 * N * D, N, D, loss, method) for method in ("hull", "envelope")}
    assert len(result["hull"].frontier.C) < 30
    for one in result.values():
        assert 0.4 < one.a < 0.65 and one.a + one.b == pytest.approx(1.0, abs=1e-3)
        assert one.a_interval[0] < one.a < one.a_interval[1]


def test_run_folders_give_checkpoints(tmp_path):
    records.append_json_lines(tmp_path / "metrics.jsonl", [
        {"step": 0, "tokens": 0, "val_loss": 5.0},
        {"step": 1, "tokens": 100, "train_loss": 4.0},
        {"step": 2, "tokens": 200, "val_loss": 3.5},
        {"step": 4, "tokens": 400, "val_loss": 3.0},
    ])  # fmt: skip
    row = {"name": "one", "status": "done", "N": 10, "D": 400, "C": 28_000.0}
    lines = records.read_metrics(tmp_path)
    result = training_curves([(row, lines), (row | {"name": "bad", "status": "diverged"}, lines)])
    assert result["run"].tolist() == ["one", "one"] and result["D"].tolist() == [200, 400]
    assert result["C"].tolist() == [14_000.0, 28_000.0] and result["loss"].tolist() == [3.5, 3.0]
    with pytest.raises(BadInput, match="no finished run"):
        training_curves([(row | {"status": "stopped"}, lines)])


def test_refusals():
    run, C, N, D, loss = training(12, 20)
    with pytest.raises(BadInput, match="did you mean 'hull'"):
        fit_envelope(run, C, N, D, loss, "hul")
    with pytest.raises(BadInput, match="3 run labels for 240"):
        fit_envelope(run[:3], C, N, D, loss)
    with pytest.raises(BadInput, match=r"loss\[0\] = -1"):
        fit_envelope(run, C, N, D, [-1, *loss[1:]])
    two = np.isin(N, N[[0, -1]])
    with pytest.raises(FitError, match="0 of 2 sizes"):
        fit_envelope(run[two], C[two], N[two], D[two], loss[two])


def test_json_is_plain():
    block = json.loads(json.dumps(fit_envelope(*training(12, 30)).to_json()))
    assert {"a", "b", "a_interval", "method", "edges", "frontier"} <= set(block)
    assert len(block["frontier"]["C"]) == len(block["frontier"]["run"])
