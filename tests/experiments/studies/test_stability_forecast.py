"""The forecast of instability: LR sensitivity by hand, intervals in closed form and by simulation, and their order."""

import math

import numpy as np
import pytest
from scipy import stats

from scalelab import config as config_lib
from scalelab.experiments.shared import train_trials
from scalelab.experiments.studies.stability_forecast import __main__ as study
from scalelab.experiments.studies.stability_forecast import figure, ladder
from scalelab.record import records


def test_lr_sensitivity_caps_each_loss_at_the_start_and_subtracts_the_best():
    mean, error = ladder.lr_sensitivity([[2.0, 1.0, None, 9.0], [3.0, 1.0, 2.0, 2.0]], 5.0)
    assert mean == pytest.approx(((2 + 1 + 5 + 5) / 4 - 1 + 2 - 1) / 2)
    assert error == pytest.approx(abs(2.25 - 1.0) / 2)


def test_a_power_law_goes_on_as_it_was():
    widths = np.array([16, 32, 64, 96])
    for degree in (1, 2):
        one = ladder.extrapolate(widths, 0.3 * widths**1.7, 192, degree)
        assert one["value"] == pytest.approx(0.3 * 192**1.7, rel=1e-9)
        assert one["low"] == pytest.approx(one["high"], rel=1e-6)
    rows = [{"arm": ladder.PLAIN, "lr": 0.1, "width": w, "attention": 0.3 * w**1.7} for w in widths]
    assert ladder.growth_exponent(rows, ladder.PLAIN, 0.1) == pytest.approx(1.7)


def test_the_interval_of_a_line_is_the_textbooks():
    rng = np.random.default_rng(0)
    widths = np.repeat([16, 32, 64, 96], 3)
    x, y = np.log2(widths), rng.standard_normal(12)
    fit, at = stats.linregress(x, y), math.log2(192)
    spread = np.sum((y - fit.intercept - fit.slope * x) ** 2) / 10
    spread *= 1 + 1 / 12 + (at - x.mean()) ** 2 / np.sum((x - x.mean()) ** 2)
    half = stats.t.ppf(0.95, 10) * math.sqrt(spread)
    one = ladder.extrapolate(widths, 2**y, 192, degree=1)
    centre = fit.intercept + fit.slope * at
    np.testing.assert_allclose(np.log2([one["low"], one["value"], one["high"]]), [centre - half, centre, centre + half])


def test_intervals_of_the_quadratic_hold_new_runs_as_often_as_said():
    rng, widths, hits, draws = np.random.default_rng(1), np.repeat([16, 32, 64, 96], 3), 0, 1500
    curve = lambda w: 1 + 0.5 * np.log2(w) + 0.1 * np.log2(w) ** 2  # noqa: E731
    for _ in range(draws):
        one = ladder.extrapolate(widths, 2 ** (curve(widths) + 0.2 * rng.standard_normal(12)), 192)
        hits += one["low"] <= 2 ** (curve(192) + 0.2 * rng.standard_normal()) <= one["high"]
    assert hits / draws == pytest.approx(ladder.LEVEL, abs=4 * math.sqrt(0.09 / draws))


def planted_rows(width, seeds, arms):
    """Rows whose logits grow as width^(1.5 rate^0.2), by a few per cent of noise, without QK-norm."""
    rng = np.random.default_rng(width)
    return [
        {"arm": arm, "width": width, "lr": lr, "seed": seed, "loss": 2.0 + (arm != ladder.QK_NORM) * lr, "log_z": 5.5,
         "attention": 3 * width ** (0 if arm == ladder.QK_NORM else 1.5 * lr**0.2) * rng.lognormal(0, 0.03)}
        for arm in arms for lr in ladder.LRS for seed in seeds
    ]  # fmt: skip


def test_the_forecast_is_on_disk_before_a_wider_run_begins_and_is_scored_by_it(tmp_path, monkeypatch):
    trained = []

    def train(folder, width, seeds, arms):
        trained.append((width, (tmp_path / "parts" / "prediction.json").exists()))
        (folder / "runs" / ladder.run_name(ladder.PLAIN, ladder.LRS[0], seeds[0])).mkdir(parents=True)
        records.write_event(folder / "runs" / ladder.run_name(ladder.PLAIN, ladder.LRS[0], seeds[0]), "start", 0)
        return planted_rows(width, seeds, arms)

    monkeypatch.setattr(study, "_train", train)
    result = study.measure(tmp_path, False)
    assert [exists for width, exists in trained] == [False] * 8 + [True] and trained[-1][0] == 192
    assert result["lead_s"] >= 0 and sum(one["inside"] for one in result["scored"]) >= 10
    assert all(row["inside"] for row in result["checks"])
    plain, norm = (result["sensitivity"][arm][-1][0] for arm in (ladder.PLAIN, ladder.QK_NORM))
    assert plain == pytest.approx(np.mean(ladder.LRS) - min(ladder.LRS)) and norm == pytest.approx(0)
    assert "| QK-norm | 96 |" in "\n".join(study.describe(result)) and len(figure.plot_forecast(result).axes) == 3


@pytest.mark.full
def test_rows_are_read_from_real_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(ladder, "LRS", (1e-2,))
    trials = ladder.make_trials(16, 20, [1], [ladder.PLAIN])
    quick = {name: config_lib.override(trial, {"eval.batches": 1}) for name, trial in trials.items()}
    train_trials(tmp_path, quick)
    (row,) = ladder.read_rows(tmp_path, 16, [1], [ladder.PLAIN])
    logged = records.read_layers(tmp_path / "runs" / ladder.run_name(ladder.PLAIN, 1e-2, 1))
    assert [line["step"] for line in logged] == [10, 20]
    assert row["attention"] == max(line["attention_logit_max"][0] for line in logged) > 0
    assert 3 < row["loss"] < 6 and row["log_z"] == pytest.approx(math.log(256), abs=1)
