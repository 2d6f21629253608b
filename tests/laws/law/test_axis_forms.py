"""Laws of other axes through `scalelab fit FILE --law=…`: simulated tables give the truth back inside its intervals.

Constants that are published are marked; the others are plausible.
"""

import csv
import json

import numpy as np
import pytest
from scipy import optimize

from scalelab.__main__ import main
from scalelab.laws.law.names import load_law
from tests.laws.truths import TRUTHS
from tests.quick import one_in
from tests.tables import table_path


def write_table(path, law, truth, columns, noise, names=None, seed=0):
    """A CSV of a law's values with noise, in logs or of the value itself where it may be negative."""
    law = load_law(law)
    value = law(columns, truth)
    errors = noise * np.random.default_rng(seed).standard_normal(len(value))
    columns = {**columns, law.target: value + errors if law.signed else value * np.exp(errors)}
    names = names or {}
    lines = [",".join(names.get(name, name) for name in columns)]
    lines += [",".join(f"{each:.12g}" for each in row) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def answer(capsys, *argv):
    assert main(["fit", *map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def grid(**axes):
    return dict(zip(axes, map(np.ravel, np.meshgrid(*axes.values())), strict=True))


PARSCALE = grid(N=np.array([0.54, 0.69, 1.06, 1.6, 2.8, 4.4]) * 1e9, P=np.array([1.0, 2.0, 4.0, 8.0]))
AXES = grid(
    N=np.array([33e6, 85e6, 151e6, 302e6, 631e6, 1.13e9]), V=2.0 ** np.arange(12, 18, 2), M=np.array([5.0, 20.0, 80.0])
)
VOCABULARIES = {
    "N": AXES["N"], "N_v": AXES["V"] * AXES["N"] ** 0.4, "D": AXES["M"] * AXES["N"],
}  # fmt: skip
SHARES = np.random.default_rng(1).dirichlet(np.ones(5), 40) * (np.random.default_rng(2).random((40, 5)) > 0.35)
SHARES = (SHARES / SHARES.sum(axis=1, keepdims=True)).T
DOMAINS = ("r1", "r2", "r3", "r4", "r5")
MIXTURE = {"c": 1.5, "t1": -2.0, "t2": 0.3, "t3": -0.6, "t4": 0.8, "t5": -0.1}
DECAYS = {
    "N": np.repeat([1e8, 3e8, 1e9, 3e9], 4), "D": np.repeat([1e8, 3e8, 1e9, 3e9], 4) * np.tile([5, 20, 80, 320], 4),
    "lr": np.tile([1e-2, 6e-3, 3e-3], 6)[:16], "batch_tokens": np.tile([2.5e5, 5e5, 1e6, 2e6, 4e6], 4)[:16],
}  # fmt: skip
CASES = [  # law, columns, noise, headers
    ("critical_batch", {"batch": np.geomspace(16, 8192, 14)}, 0.02, {"batch": "B", "steps": "steps to target"}),
    ("timescale", {"M": np.geomspace(4, 640, 16)}, 0.05, {"M": "M", "tau": "tau_EMA"}),
    ("weight_decay", DECAYS, 0.05, {"N": "params", "D": "tokens", "lr": "learning_rate", "weight_decay": "wd"}),
    ("parscale", PARSCALE, 0.001, {"N": "num_params", "P": "parallel_size"}),
    pytest.param(
        "vocabulary_normalised", VOCABULARIES, 0.003,
        {"N": "Non_vocab_parameters", "N_v": "vocab params", "D": "tokens"}, marks=pytest.mark.slow,
    ),
    ("mixture5", dict(zip(DOMAINS, SHARES, strict=True)), 0.003, {r: f"proportion_domain_{r[1]}" for r in DOMAINS}),
    pytest.param(
        "broken_power_2", {"C": np.geomspace(1e16, 1e25, 120)}, 5e-4, {"C": "compute"}, marks=pytest.mark.slow
    ),
]  # fmt: skip


@pytest.mark.parametrize(("law", "columns", "noise", "names"), one_in(5, CASES))
def test_a_simulated_table_gives_the_truth_back(capsys, tmp_path, law, columns, noise, names):
    truth = MIXTURE if law == "mixture5" else TRUTHS[law]
    path = write_table(tmp_path / "runs.csv", law, truth, columns, noise, names)
    result = answer(capsys, path, f"--law={law}", "--bootstrap=0", "--level=0.99")
    assert set(result["params"]) == set(truth)
    for name, value in truth.items():
        low, high = result["identifiability"][name]["interval"]
        assert (low if low is not None else -np.inf) <= value <= (high if high is not None else np.inf), name


@pytest.mark.parametrize(
    ("law", "header", "missing"),
    [
        ("critical_batch", "batch,tokens", "steps"),
        ("timescale", "N,tau", "M"),
        ("weight_decay", "N,D,lr,weight_decay", "batch_tokens"),
        ("parscale", "N,D,loss", "P"),
        ("broken_power_2", "N,loss", "C"),
        ("vocabulary_normalised", "N,N_v,D,loss", "lossu"),
        ("mixture4", "proportion_1,share 2,r3,loss", "r4"),
    ],
)
def test_a_table_without_the_columns_is_refused_in_a_line(capsys, tmp_path, law, header, missing):
    path = tmp_path / "runs.csv"
    path.write_text(f"{header}\n" + ",".join("1" for _ in header.split(",")) + "\n")
    assert main(["fit", str(path), f"--law={law}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"runs.csv has no {missing}" in line


def test_parscales_published_equivalents():
    """Their page of the law (hf.space, Stack-V2-Python): 2.8B with 4 streams is 1.01548, as 4.33B, 3.4B and 2.38B."""
    law, truth = load_law("parscale"), TRUTHS["parscale"]
    losses = law({"N": np.array([2.8, 4.33, 3.4, 2.38]) * 1e9, "P": np.array([4.0, 1.0, 2.0, 8.0])}, truth)
    np.testing.assert_allclose(losses, 1.01548, rtol=1e-3)  # their constants are printed to three digits
    assert np.ptp(losses) < 3e-4


def test_the_critical_batch_needs_twice_the_least():
    law, truth = load_law("critical_batch"), TRUTHS["critical_batch"]
    (steps,) = law({"batch": np.array([truth["B_crit"]])}, truth)
    assert steps == 2 * truth["S_min"] and steps * truth["B_crit"] == 2 * truth["S_min"] * truth["B_crit"]


def test_a_weight_decay_has_its_time_scale():
    (tau,) = load_law("timescale")({"M": np.array([20.0])}, TRUTHS["timescale"])
    columns = {"N": 1e9, "D": 2e10, "lr": 0.004, "batch_tokens": 1e6}
    decay = load_law("weight_decay")(columns, TRUTHS["weight_decay"])
    assert float(columns["batch_tokens"] / (0.004 * decay * 2e10)) == pytest.approx(tau, rel=1e-12)


def test_two_breaks_far_apart_are_three_slopes():
    law, t = load_law("broken_power_2"), TRUTHS["broken_power_2"] | {"E": 0.0, "C_1": 1e15, "apart": 1e10}
    C = np.array([1e3, 1e4, 1e20, 1e21, 1e40, 1e41])
    slopes = np.diff(np.log10(law({"C": C}, t)))[::2]
    expected = -np.cumsum([t["alpha"], t["shift_1"], t["shift_2"]])
    np.testing.assert_allclose(slopes, expected, atol=1e-5)
    one = {name.removesuffix("_1"): value for name, value in t.items()} | {"C_break": t["C_1"]}
    single = {name: one[name] for name in load_law("broken_power").params}
    np.testing.assert_allclose(law({"C": C}, t | {"shift_2": 0.0}), load_law("broken_power")({"C": C}, single))


@pytest.mark.full
def test_a_normalised_loss_has_no_log_and_held_out_rows_have_their_scores(capsys, tmp_path):
    law, truth = "vocabulary_normalised", TRUTHS["vocabulary_normalised"]
    assert (load_law(law)(VOCABULARIES, truth) < 0).all()
    path = write_table(tmp_path / "runs.csv", law, truth, VOCABULARIES, 0.003)
    result = answer(capsys, path, f"--law={law}", "--bootstrap=40", "--holdout=9", "--hold=alpha=.447")
    assert result["objective"]["name"] == "huber"
    assert 0 < result["holdout"]["width"] < 0.05 and 0 < result["holdout"]["interval_score"] < 0.1
    assert main(["fit", str(path), f"--law={law}", "--objective=mse_log"]) == 2
    assert "lossu may be negative and has no log; huber is of its value" in capsys.readouterr().err


@pytest.mark.full
def test_the_authors_mixtures_with_shares_of_zero_are_fitted_as_well_as_they_can_be(capsys):
    """Ye et al. 2024's 26 mixtures of five domains, many without one; an independent search finds nothing better."""
    path = table_path("active_sl/domain_mixture.csv")
    where = "group == '70M'"
    result = answer(
        capsys,
        path,
        "--law=mixture5",
        "--columns=loss=loss_domain_1",
        f"--where={where}",
        "--bootstrap=0",
        "--objective=mse_log",
    )
    rows = [row for row in csv.DictReader(path.read_text().splitlines()) if row["group"] == "70M"]
    shares = np.array([[float(row[f"proportion_domain_{i}"]) for i in range(1, 6)] for row in rows])
    loss = np.array([float(row["loss_domain_1"]) for row in rows])
    assert result["n_rows"] == len(rows) == 26 and (shares == 0).any(axis=1).sum() > 10

    def residuals(at):
        return np.log(at[0] + np.exp(shares @ at[1:])) - np.log(loss)

    random, bounds = np.random.default_rng(0), ([0.0, *[-20.0] * 5], [np.inf, *[5.0] * 5])
    starts = np.column_stack([random.uniform(1, 3, 20), random.uniform(-8, 2, (20, 5))])
    least = min(optimize.least_squares(residuals, start, bounds=bounds).cost for start in starts)
    assert result["objective"]["value"] <= least * (1 + 1e-6)


def test_a_share_below_zero_and_an_odd_number_of_domains_are_refused(capsys, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("r1,r2,loss\n0,1,3\n-0.1,1.1,3\n")
    assert main(["fit", str(path), "--law=mixture2"]) == 2
    assert "row 2, 'r1': r1 is -0.1; it must be finite, and zero or more" in capsys.readouterr().err
    assert main(["fit", str(path), "--law=mixture1"]) == 2
    assert "a mixture has 2 to 40 domains" in capsys.readouterr().err
