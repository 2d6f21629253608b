"""`scalelab fit --law=mixture`: the best shares of a table, of the authors' own, and of runs on mixtures."""

import csv
import json

import numpy as np
import pytest
from scipy import optimize

from scalelab import api
from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.record import records
from tests.quick import others_slow
from tests.tables import table_path

DOMAINS = 5
AUTHORS = "active_sl/domain_mixture.csv"


def write_table(path, n=12, noise=0.001):
    """Losses of two domains that are best at one half of each: the same law with the shares swapped."""
    rng = np.random.default_rng(0)
    rows = [("r1", "r2", "loss_web", "loss_code")]
    for r in np.linspace(0.05, 0.95, n):
        both = [1.5 + np.exp(-1.5 * share) for share in (r, 1 - r)]
        rows.append((r, 1 - r, *(loss * np.exp(noise * rng.standard_normal()) for loss in both)))
    path.write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return path


def rows_of(path, group):
    """The rows of a size of the authors' table."""
    with open(path) as file:
        return [row for row in csv.DictReader(file) if row["group"] == group]


def test_the_best_shares_are_printed_with_intervals_by_the_losses_that_are_there(tmp_path, capsys):
    path = write_table(tmp_path / "mix.csv")
    assert main(["fit", str(path), "--law=mixture", "--bootstrap=40", f"--json={tmp_path / 'fit.json'}"]) == 0
    out = capsys.readouterr().out
    assert "weights: loss_web 0.5, loss_code 0.5" in out and "by the laws: " in out
    result = json.loads((tmp_path / "fit.json").read_text())
    low, high = result["intervals"]["r1"]
    assert low < 0.5 < high and high - low < 0.2 and result["gap"] < 1e-4
    assert result["loss"] == pytest.approx(1.5 + np.exp(-0.75), rel=0.01)


@pytest.mark.full
def test_weights_decide_and_one_loss_is_best_at_one_domain(tmp_path, capsys):
    path = write_table(tmp_path / "mix.csv")
    place = tmp_path / "fit.json"
    assert main(["fit", str(path), "--law=mixture", "--losses=loss_web:3,loss_code:1", "--bootstrap=40",
                 f"--json={place}"]) == 0  # fmt: skip
    result = json.loads(place.read_text())
    # 3 exp(-1.5 r) + exp(-1.5 (1 - r)) is least at r = 1/2 + log(3) / 3
    assert result["shares"]["r1"] == pytest.approx(0.5 + np.log(3) / 3, abs=0.06)
    assert main(["fit", str(path), "--law=mixture", "--losses=loss_web", "--bootstrap=40", f"--json={place}"]) == 0
    assert json.loads(place.read_text())["shares"]["r1"] == pytest.approx(0.95)  # the largest share that was tried
    out = capsys.readouterr().out
    assert "a law of one loss is best at one domain alone" in out
    assert "r1: held at 0.95, an end of what was tried; the laws alone go to 1" in out


@pytest.mark.full
def test_the_authors_table_of_five_domains(tmp_path):
    """Ye et al. 2024, 26 mixtures of a model of 70M: an independent fit and search find nothing better."""
    path = table_path(AUTHORS)
    place = tmp_path / "fit.json"
    where = "--where=group == '70M'"
    assert main(["fit", str(path), "--law=mixture", where, "--bootstrap=30", f"--json={place}"]) == 0
    result = json.loads(place.read_text())
    assert len(result["laws"]) == DOMAINS and sum(result["shares"].values()) == pytest.approx(1)
    assert result["n_rows"] == 26 and result["gain"] > 0
    laws = [each["params"] for each in result["laws"].values()]

    def loss(shares):
        return np.mean([p["c"] + np.exp(sum(p[f"t{i + 1}"] * r for i, r in enumerate(shares))) for p in laws])

    shares = np.array(
        [[float(row[f"proportion_domain_{i + 1}"]) for i in range(DOMAINS)] for row in rows_of(path, "70M")]
    )
    low, high = shares.min(0), shares.max(0)
    found = [
        optimize.minimize(
            loss,
            begin,
            method="COBYQA",
            bounds=optimize.Bounds(low, high),
            constraints=optimize.LinearConstraint(np.ones(DOMAINS), 1, 1),
        )
        for begin in shares[::9]
    ]
    best = np.array(list(result["shares"].values()))
    assert (best >= low - 1e-9).all() and (best <= high + 1e-9).all()
    assert loss(best) <= min(each.fun for each in found) + 1e-6


@pytest.mark.full
def test_a_column_of_groups_is_asked_about(tmp_path, capsys):
    path = write_table(tmp_path / "mix.csv")
    header, *rows = path.read_text().splitlines()
    grouped = [f"{row},{size}" for row, size in zip(rows, 3 * ["70M", "160M", "305M", "410M"], strict=True)]
    path.write_text("\n".join([f"{header},group", *grouped]) + "\n")
    assert main(["fit", str(path), "--law=mixture", "--bootstrap=5"]) == 0
    assert "'group' has 4 values: if their losses differ, take one" in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("fitted_at", others_slow(lambda size: size == "70M", ["70M", "160M", "305M"]))
def test_shares_that_a_small_model_names_are_good_for_larger_ones(tmp_path, fitted_at, capsys):
    """Another hand's runs: laws of one size rank the mixtures of the largest (410M), rows that they have not seen."""
    path, place = table_path(AUTHORS), tmp_path / "fit.json"
    assert main(["fit", str(path), "--law=mixture", f"--where=group == '{fitted_at}'", "--bootstrap=2",
                 f"--json={place}"]) == 0  # fmt: skip
    laws = [each["params"] for each in json.loads(place.read_text())["laws"].values()]
    rows = rows_of(path, "410M")
    domains = range(1, DOMAINS + 1)
    measured = [np.mean([float(row[f"loss_domain_{i}"]) for i in domains]) for row in rows]
    shares = [[float(row[f"proportion_domain_{i}"]) for i in domains] for row in rows]
    by_law = [
        np.mean([p["c"] + np.exp(sum(p[f"t{i}"] * r for i, r in zip(domains, each, strict=True))) for p in laws])
        for each in shares
    ]
    assert np.corrcoef(np.argsort(np.argsort(by_law)), np.argsort(np.argsort(measured)))[0, 1] > 0.8


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--losses=loss_web:x"], "is not COLUMN or COLUMN:WEIGHT"),
        (["--losses=loss_web:0"], "all weights are zero"),
        (["--losses=loss_wbe"], "no column 'loss_wbe'"),
        (["--losses=loss_web", "--holdout=2"], "--holdout has no effect with --losses"),
        (["--bootstrap=0"], "best shares without one say little"),
    ],
)
def test_what_gives_no_shares_is_refused(tmp_path, capsys, words, message):
    path = write_table(tmp_path / "mix.csv")
    assert main(["fit", str(path), "--law=mixture", *words]) == 2
    assert message in capsys.readouterr().err
    assert main(["fit", str(path), "--losses=loss_web"]) == 2
    assert "it goes with --law=mixture" in capsys.readouterr().err


def write_run(folder, mixture, losses, N=1000):
    """A finished run on a mixture, as its record and config tell it."""
    config = {"model": {"d_model": 8}, "train": {"seed": 0}, "log": {"role": ""}, "data": {"mixture": mixture}}
    records.write_json(folder / "config.json", config)
    by_source = {f"val_loss/{name}": loss for name, loss in losses.items()}
    record = {"status": "done", "params": {"total": N}, "tokens": 1e6, "val_loss": float(np.mean([*losses.values()]))}
    records.write_json(folder / "record.json", record | {"by_source": by_source})


@pytest.mark.full
def test_runs_are_read_by_their_mixture_and_the_losses_of_their_sources(tmp_path):
    for i in range(1, 10):
        losses = {"web": 1.5 + np.exp(-0.15 * i), "code": 1.5 + np.exp(-0.15 * (10 - i))}
        write_run(tmp_path / "runs" / f"run{i}", f"web={i}/10,code={10 - i}/10", losses)
    write_run(tmp_path / "runs" / "larger", "web=1/2,code=1/2", {"web": 0.1, "code": 9.0}, N=9000)
    fitted = api.fit_mixture(tmp_path, where="N == 1000", bootstrap=10)
    assert fitted.domains == ["web", "code"] and fitted.weights == {"val_loss/web": 0.5, "val_loss/code": 0.5}
    assert fitted.best.shares == pytest.approx([0.5, 0.5], abs=0.01) and fitted.notes == []
    assert "the runs differ in size" in api.fit_mixture(tmp_path, bootstrap=2).notes[-1]
    write_run(tmp_path / "runs" / "stages", "web=1; 10: code=1", {"web": 2.0, "code": 2.0})
    with pytest.raises(BadInput, match="is not one mixture from step 0 on"):
        api.fit_mixture(tmp_path, bootstrap=2)
