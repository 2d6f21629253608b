"""Held-out errors against a law written out by hand; tournaments that the true law wins; ranks by extrapolation."""

import json

import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.laws.fits.fitting import fit
from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, loss_at
from scalelab.laws.law.names import LAWS
from scalelab.laws.law.objective import huber_log
from scalelab.laws.trust.holdout import Holdout, hold_out
from scalelab.laws.trust.information import run_sizes
from scalelab.laws.trust.tournament import run_tournament
from tests.laws.examples import QUICKSTART_LIKE, hoffmann_points, study
from tests.quick import others_slow
from tests.tables import table_path

BY = huber_log()


def table(N, D, loss):
    return {"N": N, "D": D, "loss": loss}


def grid(noise=0.0, seed=0):
    return table(*study(QUICKSTART_LIKE, noise, seed, sizes=7, budgets=np.geomspace(1e11, 8e12, 6)))


def test_the_largest_rows_are_predicted_by_a_fit_to_the_others():
    """The same numbers as fitting the other rows alone and evaluating the law by hand."""
    rows = grid(0.004)
    cost = rows["N"] * rows["D"]
    largest = np.argsort(-cost, kind="stable")[:7]
    rest = np.setdiff1d(np.arange(len(cost)), largest)
    result = hold_out(LAWS["chinchilla"], {"N": rows["N"], "D": rows["D"]}, rows["loss"], BY, 7)
    assert result.rows.tolist() == largest.tolist()
    alone = fit({name: values[rest] for name, values in rows.items()}, bootstrap=0, identify=False)
    by_hand = loss_at(ChinchillaParams(**alone.params), rows["N"], rows["D"])
    np.testing.assert_allclose(result.predicted, by_hand[largest], rtol=1e-5)
    error = np.abs(by_hand / rows["loss"] - 1)
    assert result.mape == pytest.approx(error[largest].mean(), rel=1e-2)
    assert result.in_sample_mape == pytest.approx(error[rest].mean(), rel=1e-2)


def test_a_held_out_row_has_no_say():
    """However wrong its loss, the prediction stays; in the fit itself it would not."""
    rows = grid(0.002)
    columns = {"N": rows["N"], "D": rows["D"]}
    before = hold_out(LAWS["chinchilla"], columns, rows["loss"], BY, 3)
    spoilt = rows["loss"].copy()
    spoilt[before.rows] *= 3
    after = hold_out(LAWS["chinchilla"], columns, spoilt, BY, 3)
    np.testing.assert_allclose(after.predicted, before.predicted, rtol=1e-9)
    assert after.errors == pytest.approx((before.errors + 1) / 3 - 1)


def test_exact_data_are_extrapolated_exactly_and_json_holds_it():
    fitted = fit(grid(), bootstrap=0, identify=False, holdout=7)
    block = json.loads(json.dumps(fitted.to_json()["holdout"]))
    assert block["mape"] < 1e-8 and len(block["rows"]) == len(block["per_row"]) == 7
    assert block["per_row"][0]["scale"] == max(row["scale"] for row in block["per_row"])
    assert block["per_row"][0].keys() == {"row", "scale", "measured", "predicted", "error"}


@pytest.mark.parametrize(
    ("columns", "largest"),
    [
        ({"C": [1.0, 3.0, 2.0]}, 1),
        ({"N": [1.0, 2.0, 9.0], "D": [9.0, 8.0, 1.0]}, 1),
        ({"D": [5.0, 1.0, 2.0]}, 0),
        ({"loss": [3.0, 2.5, 2.0]}, 2),  # downstream error: the best model is the largest
    ],
)
def test_what_counts_as_large(columns, largest):
    assert run_sizes({name: np.array(values) for name, values in columns.items()}).argmax() == largest


@pytest.mark.parametrize(
    ("count", "message"),
    [(0, "holdout = 0: between 1 and 41"), (42, "holdout = 42"), (28, "without the 28 largest rows: .*2 budgets"),
     (39, "without the 39 largest rows: 3 runs: law 'chinchilla' has 5 parameters")],
)  # fmt: skip
def test_too_many_held_out_are_refused(count, message):
    rows = grid()
    with pytest.raises(BadInput, match=message):
        hold_out(LAWS["chinchilla"], {"N": rows["N"], "D": rows["D"]}, rows["loss"], BY, count)


KAPLAN = {"N_c": 6.4e13, "D_c": 1.8e13, "alpha_N": 0.076, "alpha_D": 0.103}
ENTRANTS = ["chinchilla", "kaplan", "saturating"]


def kaplans_world(noise):
    C = np.geomspace(1e17, 1e20, 6)
    N = (np.sqrt(C / 120)[:, None] * np.geomspace(1 / 5, 5, 7)).ravel()
    D = np.repeat(C, 7) / (6 * N)
    loss = LAWS["kaplan"]({"N": N, "D": D}, KAPLAN)
    return table(N, D, loss * np.exp(noise * np.random.default_rng(3).standard_normal(len(N))))


@pytest.mark.full
@pytest.mark.parametrize(
    ("truth", "rows"),
    others_slow(lambda truth, _: truth == "kaplan", [("chinchilla", grid(0.002)), ("kaplan", kaplans_world(0.0003))]),
)
def test_the_law_that_made_the_data_wins(truth, rows):
    entries = run_tournament(rows, ENTRANTS, 14)
    assert entries[0].law.name == truth
    errors = [entry.result.mape for entry in entries]
    assert min(errors[1:]) > 1.5 * errors[0]  # the others' ranks are by interval score, which their misfit widens
    scores = [entry.result.interval_score for entry in entries]
    assert scores == sorted(scores)
    assert all(entry.result.rows.tolist() == entries[0].result.rows.tolist() for entry in entries)


@pytest.mark.full
def test_a_law_that_cannot_be_fitted_comes_last_and_says_why():
    """Eleven rows, of which four are held out: seven determine no law of nine parameters."""
    rows = {name: values[::4] for name, values in grid(0.002).items()}
    laws = ["farseer", "saturating", "step_law_lr"]
    entries = run_tournament(rows, laws, 4)
    assert entries[0].law.name == "saturating" and entries[0].why == ""
    reasons = {entry.law.name: entry.why for entry in entries[1:]}
    assert "7 runs: law 'farseer' has 9 parameters" in reasons["farseer"]
    assert "the table has no lr" in reasons["step_law_lr"]
    block = json.loads(json.dumps([entry.to_json() for entry in entries]))
    assert block[0]["mape"] > 0 and block[-1]["mape"] is None and block[-1]["why"]
    with pytest.raises(BadInput, match="no law of the table has its columns"):
        run_tournament({"lr": [1e-3, 2e-3]}, count=1)


def gemstones():
    rows = [json.loads(line) for line in table_path("gemstones/hot_100b+.jsonl").read_text().splitlines()]
    names = ("params_active_precise", "tokens", "final_loss")
    return [np.array([float(row[column]) for row in rows]) for column in names]


PUBLISHED = [(hoffmann_points, 24), (gemstones, 70)]


@pytest.mark.full
@pytest.mark.parametrize(("points", "count"), others_slow(lambda _, count: count == 24, PUBLISHED))
def test_ranks_are_by_extrapolation_not_by_fit(points, count):
    """Gadre's law (Chinchilla's with one exponent) fits both published tables worse but predicts the largest better."""
    entries = run_tournament(table(*points()), ["chinchilla", "overtraining"], count, resamples=0)
    assert [entry.law.name for entry in entries] == ["overtraining", "chinchilla"]
    first, second = (entry.result for entry in entries)
    assert first.mape < second.mape < 0.012 and first.in_sample_mape > second.in_sample_mape


def test_laws_without_their_columns_do_not_take_part():
    """By default every law that has its columns and no other: D and loss alone leave none but those of D."""
    rows = grid()
    with pytest.raises(BadInput, match="the table has D, loss: no law"):
        run_tournament({"D": rows["D"], "loss": rows["loss"]}, count=3)
    tokens = {"D": rows["D"], "batch_tokens": 0.58 * rows["D"] ** 0.571}
    (entry,) = run_tournament(tokens, count=3)
    assert entry.law.name == "step_law_batch" and entry.result.mape < 1e-8


def test_intervals_of_held_out_rows_are_those_of_a_fit_to_the_rest():
    rows = grid(0.004)
    fitted = fit(rows, bootstrap=300, identify=False, holdout=7)
    result = fitted.holdout
    rest = np.setdiff1d(np.arange(42), result.rows)
    alone = fit({name: values[rest] for name, values in rows.items()}, bootstrap=200, identify=False)
    for i, row in enumerate(result.rows):
        prediction = alone.predict(rows["N"][row], rows["D"][row])
        assert (result.low[i], result.high[i]) == pytest.approx((prediction.low, prediction.high), rel=1e-3)
    inside = np.sum((result.low <= result.measured) & (result.measured <= result.high))
    assert result.inside == inside
    assert 2 <= result.inside_by_chance[0] <= 5 and result.inside_by_chance[1] == 7  # independent: 5 of 7 or more
    block = json.loads(json.dumps(fitted.to_json()["holdout"]))
    assert block["inside"] == inside and block["per_row"][0]["low"] == result.low[0]


def test_the_interval_score_is_width_and_penalty():
    """Of three rows one is inside, one above by 0.1 and one below by 0.2 in logs: 0.4 + 20 x 0.3 / 3."""
    measured = np.exp([1.0, 1.3, 0.6])
    result = Holdout(
        np.arange(3), np.ones(3), measured, np.exp(np.ones(3)), {}, 0.0, 0.9, np.exp([0.8] * 3), np.exp([1.2] * 3)
    )
    assert result.interval_score == pytest.approx(0.4 + 20 * 0.3 / 3) and result.inside == 1
