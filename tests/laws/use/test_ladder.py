"""Ladders to accuracy: known laws found again, joint intervals, checkpoints' noise, what is not determined."""

import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.laws.use import ladder as ladder_lib
from scalelab.laws.use.ladder import TASK_ACCURACY, TASK_LOSS, fit_ladder, gather_runs, hold_out_ladder

LOSS = {"E": 0.4, "A": 60.0, "B": 150.0, "alpha": 0.3, "beta": 0.28}
ACCURACY = {"floor": 0.25, "span": 0.6, "k": 5.0, "L0": 1.0}


def measure(N, D, random, loss_sd=0.005, accuracy_sd=0.01):
    loss = TASK_LOSS({"N": N, "D": D}, LOSS) * np.exp(loss_sd * random.standard_normal(len(N)))
    return loss, TASK_ACCURACY({"loss": loss}, ACCURACY) + accuracy_sd * random.standard_normal(len(N))


def simulate(seed, smallest=1e7, **noise):
    """20 runs of five sizes and four ratios, from near chance on."""
    random = np.random.default_rng(seed)
    N = np.repeat(np.geomspace(smallest, 1.5e9, 5), 4)
    D = N * np.tile([20.0, 40.0, 80.0, 200.0], 5)
    return gather_runs(N, D, *measure(N, D, random, **noise), None, 5), random


def test_exact_ladders_give_their_parameters():
    runs, _ = simulate(0, loss_sd=0.0, accuracy_sd=0.0)
    fitted = fit_ladder(runs, bootstrap=20)
    assert fitted.params() == pytest.approx(LOSS | ACCURACY | {"ceiling": 0.85}, rel=1e-4)
    loss = TASK_LOSS({"N": np.array([7e9]), "D": np.array([4e12])}, LOSS)
    (accuracy,) = ACCURACY["floor"] + ACCURACY["span"] / (1 + np.exp(ACCURACY["k"] * (loss - ACCURACY["L0"])))
    predicted = fitted.predict(7e9, 4e12)
    assert predicted.loss[0] == pytest.approx(loss[0], rel=1e-5) and predicted.accuracy[0] == pytest.approx(accuracy)


def test_one_interval_holds_the_errors_of_both_steps():
    """With noise in one step only, the other's share of the interval of accuracy vanishes; with both it is wider."""
    widths = []
    for noise in ({"loss_sd": 0.02, "accuracy_sd": 1e-6}, {"loss_sd": 1e-6, "accuracy_sd": 0.01}, {"loss_sd": 0.02}):
        runs, _ = simulate(3, **noise)
        fitted = fit_ladder(runs, bootstrap=60)
        _, low, high = fitted.predict(2e9, 2e11).accuracy
        widths.append(high - low)
    assert widths[2] > max(widths[:2]) > min(widths[:2]) > 0
    assert fitted.doubts() == [] and abs(fitted.correlation) < 0.6


@pytest.mark.slow
def test_intervals_hold_larger_runs_as_often_as_they_say():
    """100 studies: task loss and accuracy of a run of 100 times the FLOPs, the ceiling and an exponent."""
    inside = []
    for seed in range(100):
        runs, random = simulate(100 + seed)
        fitted = fit_ladder(runs, bootstrap=150)
        loss, accuracy = measure(np.array([7e9]), np.array([1e12]), random)
        predicted, intervals = fitted.predict(7e9, 1e12), fitted.intervals()
        inside.append([
            predicted.loss[1] <= loss[0] <= predicted.loss[2],
            predicted.accuracy[1] <= accuracy[0] <= predicted.accuracy[2],
            intervals["ceiling"][0] <= 0.85 <= intervals["ceiling"][1],
            intervals["alpha"][0] <= LOSS["alpha"] <= intervals["alpha"][1],
        ])  # fmt: skip
    shares = np.mean(inside, axis=0)
    assert (shares >= 0.82).all() and (shares <= 0.99).all(), shares


def test_the_last_checkpoints_tell_noise_and_weight():
    """Two runs of ten checkpoints: the last row counts, the scatter is that about the line of the last five."""
    D = np.tile(np.arange(1.0, 11.0), 2)
    wobble = np.array([0.0, 0.1, -0.2, 0.1, 0.0])  # orthogonal to a line; its standard deviation about it: sqrt(.06/3)
    loss = np.exp(np.concatenate([3 - 0.1 * np.arange(5), 2.5 - 0.1 * np.arange(5) + wobble, 2 - 0.05 * np.arange(10)]))
    accuracy = np.concatenate([0.3 + 0.01 * np.arange(20)])
    runs = gather_runs(np.repeat([1.0, 2.0], 10), D, loss, accuracy, ["a"] * 10 + ["b"] * 10, 5)
    assert runs.D.tolist() == [10, 10] and runs.loss.tolist() == loss[[9, 19]].tolist()
    np.testing.assert_allclose(runs.loss_sd, [np.sqrt(0.06 / 3), 0.0], atol=1e-12)
    weights = ladder_lib._weights(runs.loss_sd, runs.checkpoints)
    assert weights[1] > 1.5 * weights[0] and weights.mean() == pytest.approx(1)
    alone = gather_runs(D[:8], D[:8], loss[:8], accuracy[:8], None, 5)
    assert np.isnan(alone.loss_sd).all() and (ladder_lib._weights(alone.loss_sd, alone.checkpoints) == 1).all()


@pytest.mark.full
def test_what_is_not_determined_is_said():
    chance, _ = simulate(1)
    chance.accuracy[:] = 0.25 + 0.01 * np.random.default_rng(0).standard_normal(20)
    assert "all runs are at chance" in fit_ladder(chance, bootstrap=20).doubts()[0]
    far, _ = simulate(1, smallest=3e8)  # all well above chance
    doubts = " ".join(fit_ladder(far, bootstrap=40).doubts())
    assert "the floor is not determined" in doubts and "--hold=floor" in doubts
    fixed = fit_ladder(far, hold={"floor": 0.25}, bootstrap=20)
    assert "the floor" not in " ".join(fixed.doubts()) and "floor" not in fixed.params()


def test_held_out_runs_are_the_largest_and_scored():
    runs, _ = simulate(5)
    held = hold_out_ladder(runs, 3, bootstrap=20)
    assert sorted(each.N * each.D for each in held) == sorted(runs.N * runs.D)[-3:]
    assert all(abs(each.accuracy[0] - each.measured[1]) < 0.05 for each in held)


def test_mistakes_are_refused():
    runs, _ = simulate(0)
    for change, line in (
        ({"hold": {"flor": 0.25}}, "did you mean 'floor'"),
        ({"level": 2.0}, "between 0 and 1"),
        ({"bootstrap": 3}, "20 to 10000"),
    ):
        with pytest.raises(BadInput, match=line):
            fit_ladder(runs, **change)
    with pytest.raises(BadInput, match="at least 7"):
        fit_ladder(runs.select(np.arange(5)))
    with pytest.raises(BadInput, match="3 or more"):
        gather_runs(runs.N, runs.D, runs.loss, runs.accuracy, None, 2)
    runs.accuracy[:] *= 100
    with pytest.raises(BadInput, match=r"NAME\*0.01"):
        fit_ladder(runs)
