"""Which rows are fitted, that a table's order is no information, and what the JSON block says."""

import json

import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.laws.fits.fitting import fit_chinchilla
from scalelab.laws.fits.study import fit_study, select_rows
from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, loss_at
from scalelab.laws.trust.uncertainty import bootstrap_fit
from tests.laws.examples import QUICKSTART_LIKE, posed, study

N, D, LOSS = study(QUICKSTART_LIKE, 0.005)


def table(**columns):
    rows = [
        {
            "name": f"run{i}",
            "status": "done",
            "role": "",
            "N": n,
            "N_kaplan": n / 2,
            "D": d,
            "C": 7 * n * d,
            "val_loss": y,
        }
        for i, (n, d, y) in enumerate(zip(N, D, LOSS, strict=True))
    ]
    return [row | {key: values[i] for key, values in columns.items()} for i, row in enumerate(rows)]


def test_the_numbers_are_those_of_the_fit_itself():
    result = fit_study(table(), bootstrap=50)
    assert result.params == pytest.approx(fit_chinchilla(N, D, LOSS)[0]._asdict(), rel=1e-5)
    order = np.argsort(LOSS)
    boot = bootstrap_fit(posed(N[order], D[order], LOSS[order]), result.best, count=50, misfit=result.misfit)
    np.testing.assert_array_equal(result.bootstrap.params["alpha"], boot.params["alpha"])
    assert result.loss(1e5, 1e7) == float(loss_at(ChinchillaParams(**result.params), 1e5, 1e7))


def test_order_names_and_other_columns_change_no_bit():
    rows = table()
    shuffled = [row | {"name": f"other{i}", "seed": i} for i, row in enumerate(rows[::-1])]
    first, second = (fit_study(each, bootstrap=50).to_json() for each in (rows, shuffled))
    assert json.dumps(first | {"seconds": 0}) == json.dumps(second | {"seconds": 0})


def test_rows_survive_json_bit_for_bit():
    rows = table()
    copy, plain = (fit_study(each, bootstrap=20).to_json() for each in (json.loads(json.dumps(rows)), rows))
    assert copy | {"seconds": 0} == plain | {"seconds": 0}


@pytest.mark.full
def test_only_role_fit_is_fitted_where_there_is_one():
    spoilt = [
        {"name": "check-lr", "role": "check", "status": "done", "N": 1e4, "D": 1e6, "val_loss": 9.0},
        {"name": "holdout", "role": "holdout", "status": "done", "N": 1e6, "D": 1e7, "val_loss": 0.1},
    ]
    result = fit_study(table(role=["fit"] * 20) + spoilt, bootstrap=20)
    assert result.params == fit_study(table(), bootstrap=20).params
    assert result.excluded == (
        {"name": "check-lr", "reason": "role check"},
        {"name": "holdout", "reason": "role holdout"},
    )


def test_what_is_not_a_finished_loss_is_left_out_with_its_reason():
    bad = [
        {"name": "a", "status": "diverged", "N": 1e4, "D": 1e6, "val_loss": 3.0},
        {"name": "b", "status": "running", "N": 1e4, "D": 1e6, "val_loss": 3.0},
        {"name": "c", "status": "done", "N": 1e4, "D": 1e6, "val_loss": float("nan")},
        {"name": "d", "status": "done", "N": 1e4, "D": 1e6, "val_loss": None},
        {"status": "done", "D": 1e6, "val_loss": 2.0},
    ]
    selected, excluded = select_rows(table() + bad, ["N", "D", "val_loss"], "val_loss")
    assert len(selected) == 20
    assert [(entry["name"], entry["reason"]) for entry in excluded] == [
        ("a", "diverged"), ("b", "running"), ("c", "val_loss is nan"), ("d", "no val_loss"), ("row 25", "no N"),
    ]  # fmt: skip


def test_the_largest_losses_can_be_dropped():
    selected, excluded = select_rows(table(), ["N", "D", "val_loss"], "val_loss", drop_top_loss=3)
    assert {row["val_loss"] for row in selected} == set(np.sort(LOSS)[:-3])
    assert {entry["reason"] for entry in excluded} == {"one of the 3 largest losses"}
    with pytest.raises(BadInput, match="drop_top_loss = -1"):
        select_rows(table(), ["N", "D", "val_loss"], "val_loss", drop_top_loss=-1)
    assert select_rows(table(), ["N", "D", "val_loss"], "val_loss", drop_top_loss=99)[0] == []


def test_conventions_read_their_own_column():
    half = fit_study(table(), n_convention="kaplan", bootstrap=20)
    total = fit_study(table(), bootstrap=20)
    assert half.n_convention == "kaplan" and total.n_convention == "total"
    assert half.params["alpha"] == pytest.approx(total.params["alpha"], rel=1e-4)
    assert pytest.approx(total.params["A"] / 2 ** total.params["alpha"], rel=1e-3) == half.params["A"]
    with pytest.raises(BadInput, match="did you mean 'non_embedding'"):
        fit_study(table(), n_convention="nonembedding")
    with pytest.raises(BadInput, match="20 no N_chinchilla"):
        fit_study(table(), n_convention="chinchilla")


def test_a_budget_is_counted_as_the_runs_count_theirs():
    result = fit_study(table(), bootstrap=20)
    assert result.k == pytest.approx(7)
    decision = result.decide(4e12)
    assert decision.N.value * decision.D.value == pytest.approx(4e12 / 7)
    assert fit_study(table(C=[None] * 20), bootstrap=20).k == pytest.approx(6)


def test_the_block_is_plain_json_with_every_promised_key():
    block = json.loads(json.dumps(fit_study(table(), bootstrap=50).to_json()))
    for key in ("law", "params", "certificate", "intervals", "n_convention", "n_runs", "excluded", "warnings"):
        assert key in block
    for name, value in block["params"].items():
        low, high = block["intervals"][name]
        assert low <= value <= high
    assert block["n_runs"] == 20 and block["warnings"] == []


@pytest.mark.full
def test_warnings_say_what_is_poorly_identified():
    loss = loss_at(QUICKSTART_LIKE._replace(E=0.0), N, D) * np.exp(0.03 * np.sin(9 * N))
    message = " ".join(fit_study(table(val_loss=loss), bootstrap=50).warnings())
    assert "E is at its bound" in message and "poorly identified" in message
    few = [0, 2, 4, 7, 12, 15, 19]
    message = " ".join(fit_study([table()[i] for i in few], bootstrap=50).warnings())
    assert "of 50 resamples gave a fit" in message


def test_rows_of_one_value_share_an_error():
    result = fit_study(table(run=[f"r{i // 2}" for i in range(20)]), cluster="run", bootstrap=30)
    assert result.bootstrap.used + sum(result.bootstrap.failed.values()) == 30
    assert result.to_json()["dependence"]["groups"] == 10
    with pytest.raises(BadInput, match="--cluster=runs: no such column; did you mean 'run'"):
        fit_study(table(run=list("ab" * 10)), cluster="runs")
