"""`scalelab fit` on tables of models with experts: which parameters N counts is read by name, asked or printed."""

import csv
import json
import pathlib

import numpy as np
import pytest

from scalelab import api
from scalelab.__main__ import main
from scalelab.laws.law.names import LAWS
from tests.laws.truths import TRUTHS
from tests.tables import table_path

CHINCHILLA = LAWS["chinchilla"]
ACTIVE, D = (np.ravel(each) for each in np.meshgrid(np.geomspace(3e7, 3e9, 6), np.geomspace(1e9, 1e11, 5)))
LOSS = CHINCHILLA({"N": ACTIVE, "D": D}, TRUTHS["chinchilla"]) * np.exp(
    0.002 * np.random.default_rng(0).standard_normal(len(D))
)


def written(tmp_path, **columns):
    path = tmp_path / "runs.csv"
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(f"{each:.12g}" for each in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def fitted(capsys, path, *argv):
    assert main(["fit", str(path), "--bootstrap=20", "--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, path, *argv):
    assert main(["fit", str(path), "--bootstrap=20", *argv]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.full
def test_active_and_total_parameters_are_asked_about_and_chosen_by_name(capsys, tmp_path):
    path = written(tmp_path, active_params=ACTIVE, total_params=8 * ACTIVE, tokens=D, loss=LOSS)
    line = refused(capsys, path)
    assert "'active_params' and 'total_params' both fit N" in line and "--size=active or total" in line
    active = fitted(capsys, path, "--size=active", "--target-flops=1e21")
    assert active["n_convention"] == "column 'active_params' (active parameters)"
    assert active["params"]["alpha"] == pytest.approx(0.34, abs=0.03)
    total = fitted(capsys, path, "--size=total", "--target-flops=1e21")
    assert total["columns"]["N"] == "total_params" and "C = 6N_active D" in total["derived"]
    assert total["flops_per_param_token"] == pytest.approx(6 / 8)
    # One model by either count: eight times the parameters, the same tokens, the same loss.
    a, t = active["allocation"]["1e+21"], total["allocation"]["1e+21"]
    assert t["N"] == pytest.approx(8 * a["N"], rel=1e-3) and t["D"] == pytest.approx(a["D"], rel=1e-3)
    assert t["loss"] == pytest.approx(a["loss"], rel=1e-6)


@pytest.mark.full
def test_a_column_that_does_not_tell_is_printed(capsys, tmp_path):
    path = written(tmp_path, N=8 * ACTIVE, Na=ACTIVE, D=D, loss=LOSS)
    (note,) = fitted(capsys, path)["read_as"]
    assert note == "runs.csv: N is column 'N', by their names 'Na' active ones: --size=active or total chooses"
    assert fitted(capsys, path, "--size=active")["columns"]["N"] == "Na"
    total = fitted(capsys, path, "--size=total")
    assert total["columns"]["N"] == "N" and total["columns"]["N_active"] == "Na"
    path = written(tmp_path, params=ACTIVE, D=D, loss=LOSS)
    notes = fitted(capsys, path, "--size=active")["read_as"]
    assert any(
        "N counts active parameters here; the name of its column 'params' doesn't say so" in note for note in notes
    )


def test_a_budget_of_all_parameters_needs_the_active_ones(capsys, tmp_path):
    path = written(tmp_path, total_params=8 * ACTIVE, tokens=D, loss=LOSS)
    line = refused(capsys, path, "--size=total", "--target-flops=1e21")
    assert "FLOPs are of the active ones" in line and "active_share=X" in line
    told = fitted(capsys, path, "--size=total", "--target-flops=1e21", "--target-values=active_share=0.125")
    assert told["flops_per_param_token"] == 0.75
    path = written(tmp_path, total_params=8 * ACTIVE, n_active=ACTIVE * (1 + (D > 1e10)), tokens=D, loss=LOSS)
    line = refused(capsys, path, "--size=total", "--target-flops=1e21")
    assert "active parameters are 0.125 to 0.25 of all" in line


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--size=activ"], "did you mean 'active'"),
        (["--law=routed", "--size=total"], "law 'routed' is one of active parameters"),
        (["--law=saturating", "--size=total"], "which has no N"),
        (["--law=routed"], "N is to count active parameters, and 'total_params' holds total ones"),
    ],
)
def test_a_size_that_cannot_be_is_refused(capsys, tmp_path, argv, said):
    path = written(tmp_path, total_params=8 * ACTIVE, tokens=D, C=D, n_experts=D, loss=LOSS)
    assert said in refused(capsys, path, *argv)


SPARSE = [np.geomspace(5e8, 3e10, 5), np.geomspace(1e9, 3e11, 4), [1.0, 2.0, 8.0, 32.0]]


def test_sparsity_and_activation_follow_from_the_experts(tmp_path):
    """k of E experts: S = 1 - k/E; shared ones are active and count among all (Tian et al. 2025, sec. 2.1)."""
    path = written(tmp_path, total_params=[1e9, 1e9], tokens=[1e9, 1e9], num_experts=[64, 1], top_k=[4, 1], loss=[3, 4])
    table = api.read_table(str(path), "sparsity")
    assert [row["sparsity"] for row in table.rows] == [1 - 4 / 64, 0.0]
    assert table.derived == "sparsity = 1 - active experts/experts"
    columns = {"num_experts": [64, 8], "k": [4, 8], "n_shared_experts": [1, 0]}
    path = written(tmp_path, **columns, granularity=[2, 2], C=[1e20, 1e20], EL=[2, 1])
    assert [row["activation"] for row in api.read_table(str(path), "leverage").rows] == [5 / 65, 1.0]


@pytest.mark.full
def test_a_law_of_sparsity_is_fitted_to_numbers_of_experts(capsys, tmp_path):
    N, tokens, experts = map(np.ravel, np.meshgrid(*SPARSE))
    loss = LAWS["sparsity"]({"N": N, "D": tokens, "sparsity": 1 - 1 / experts}, TRUTHS["sparsity"])
    path = written(tmp_path, total_params=N, tokens=tokens, num_experts=experts, top_k=experts**0, loss=loss)
    hold = "--hold=e=.94,lam=-.1666,delta=.1603,gamma=.1595,alpha=.5962"
    assert fitted(capsys, path, "--law=sparsity", hold)["params"]["c"] == pytest.approx(0.4598, rel=1e-3)


def test_step_laws_mixtures_have_both_counts():
    """Step Law's own table: N of all parameters beside Na; which one is read is said, and chosen by name."""
    path = str(table_path("steplaw/moe.csv"))
    lines = list(csv.DictReader(pathlib.Path(path).read_text().splitlines()))
    for size, column in (("active", "Na"), ("total", "N")):
        table = api.read_table(path, api.load_law("step_law_lr", size=size))
        assert [row["N"] for row in table.rows] == [float(line[column]) for line in lines]
        assert table.n_convention == f"column {column!r} ({size} parameters)"
    (note,) = api.read_table(path, "step_law_lr").notes
    assert "N is column 'N', by their names 'Na' active ones" in note


@pytest.mark.full
def test_the_best_size_for_a_number_of_experts(tmp_path):
    """Planted: Ludziejewski et al. 2025, whose table 1 has 3.8B active parameters and 44.3B tokens for 8 experts."""
    axes = np.meshgrid(np.geomspace(5e7, 2.7e9, 4), np.geomspace(1e9, 1e11, 4), 4.0 ** np.arange(4))
    N, tokens, experts = map(np.ravel, axes)
    loss = LAWS["expert_count"]({"N": N, "D": tokens, "experts": experts}, TRUTHS["expert_count"])
    path = written(tmp_path, active_params=N, tokens=tokens, num_experts=experts, loss=loss)
    options = {"target_flops": 1e21, "target_values": {"experts": 8}, "bootstrap": 10, "identify": False}
    (best,) = api.fit(str(path), "expert_count", **options).decisions
    assert best.N.value == pytest.approx(3.8e9, rel=0.02) and best.D.value == pytest.approx(44.3e9, rel=0.02)


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder whose rows are runs with experts, as the index reads them, and one without."""
    rows = [
        {"name": f"r{i}", "status": "done", "N": 8 * N if i else N, "N_active": N, "D": tokens, "C": 6 * N * tokens,
         "val_loss": loss, "model.n_experts": 16 if i else 0, "model.experts_per_token": 2}
        for i, (N, tokens, loss) in enumerate(zip(ACTIVE.tolist(), D.tolist(), LOSS.tolist(), strict=True))
    ]  # fmt: skip
    monkeypatch.setattr("scalelab.api.laws.fit_rows.read_grid", lambda folder: ([dict(row) for row in rows], ()))
    (tmp_path / "r0").mkdir()  # a folder of runs of ours, not a source of another program
    (tmp_path / "r0" / "config.json").write_text('{"train": {}}')
    return tmp_path


def test_runs_count_what_the_law_or_the_option_says(capsys, runs):
    active = fitted(capsys, runs, "--size=active", "--bootstrap=0")
    assert active["n_convention"] == "active parameters"
    assert active["params"]["alpha"] == pytest.approx(0.34, abs=0.03)
    for law, size in (("chinchilla", "total"), ("granularity", "total"), ("expert_count", "active")):
        table = api.read_table(str(runs), api.load_law(law, size=size))
        assert [row["N"] for row in table.rows[:2]] == [ACTIVE[0], ACTIVE[1] * (8 if size == "total" else 1)]
        assert table.n_convention == f"{size} parameters"
    (note,) = api.read_table(str(runs)).notes
    assert "of models with experts: --size=active or total chooses" in note


def test_a_run_without_experts_is_one_of_one(runs):
    first, second, *_ = api.read_table(str(runs), "sparsity").rows
    assert (first["experts"], first["sparsity"]) == (1, 0.0) and (second["experts"], second["sparsity"]) == (16, 0.875)
