"""Allocations against the tables of the papers, brute force over the printed formulas, and the authors' own runs."""

import dataclasses
import json
import math

import numpy as np
import pytest

from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.laws.published import besiroglu, muennighoff, porian, tables
from scalelab.laws.solve import optimum
from scalelab.plan.budget import lawbook
from scalelab.plan.budget.allocate import allocate_budget
from scalelab.plan.budget.overtraining import assess_overtraining
from scalelab.plan.machine.machine import load_machine
from tests.laws.examples import published
from tests.tables import TABLES, table_path

# Besiroglu et al. 2024, eq. 4 with its notebook's digits; Hoffmann et al.'s law as Sardana et al. 2024 use it (their
# exponents from memory of the paper).
EQ_4 = {"E": 1.81686, "A": 482.00572, "B": 2085.4342, "alpha": 0.34781303, "beta": 0.36585412}
SARDANA = {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.336, "beta": 0.283}


def chinchilla_loss(law, N, D):
    return law["E"] + law["A"] / N ** law["alpha"] + law["B"] / D ** law["beta"]


@pytest.mark.parametrize("law", ["chinchilla_1", "chinchilla_2"])
def test_chinchillas_tables_3_and_A3(law):
    """Each printed size is the best for its printed FLOPs and tokens, to what a power law through the table leaves."""
    paper = published("chinchilla_paper")
    rows = paper["table3_approach1"] if law == "chinchilla_1" else paper["tableA3"]["rows"]
    for N, C, D, *_ in rows:
        assert allocate_budget(flops=C, law=law).n == pytest.approx(N, rel=0.04)
        assert allocate_budget(params=N, law=law).d == pytest.approx(D, rel=0.08)
        assert allocate_budget(tokens=D, law=law).flops == pytest.approx(C, rel=0.16)


def test_chinchillas_approach_3_at_gophers_budget():
    """Section 3.3: 40 billion parameters; and nowhere a loss without an interval that is published."""
    answer = allocate_budget(flops=5.76e23, law="Chinchilla-3")
    assert answer.n == pytest.approx(40e9, rel=0.02) and answer.law == allocate_budget(flops=1e20, law="chinchilla").law
    assert set(answer.intervals.values()) == {None} and "0.4565" in answer.interval and answer.level is None
    assert "2203.15556" in answer.source


def test_kaplans_trend():
    """Table 5 at one PF-day; and ten times the compute asks for 5.5 times the size, 1.8 times the tokens (Hoffmann,
    sec. 1)."""
    one, ten = (allocate_budget(flops=C, law="kaplan") for C in (8.64e19, 8.64e20))
    assert one.n == pytest.approx(1.3e9) and one.n_convention == "non_embedding"
    assert ten.n / one.n == pytest.approx(5.5, rel=0.03) and ten.d / one.d == pytest.approx(1.8, rel=0.04)
    assert 1.5 < ten.loss < one.loss < 3.5


@pytest.mark.parametrize("C", [1e20, 5.76e23, 1e26])
def test_besiroglus_law_by_brute_force(C):
    sizes = np.geomspace(1e7, 1e14, 2_000_001)
    losses = chinchilla_loss(EQ_4, sizes, C / 6 / sizes)
    answer = allocate_budget(flops=C)
    assert answer.n == pytest.approx(sizes[losses.argmin()], rel=2e-3)
    assert answer.loss == pytest.approx(losses.min(), abs=1e-9)
    assert 6 * answer.n * answer.d == pytest.approx(C) and answer.tokens_per_parameter == pytest.approx(
        answer.d / answer.n
    )
    for question, value in (("params", answer.n), ("tokens", answer.d), ("target_loss", answer.loss)):
        assert allocate_budget(**{question: value}).flops == pytest.approx(C, rel=1e-6)


def test_besiroglus_intervals_are_those_of_resampled_runs():
    """The spread that is written down, and the interval of N that follows, from the authors' points and draws."""
    given = besiroglu.fitted_points(table_path("chinchilla/points.csv").parents[1])
    posed = besiroglu.huber_problem(given)
    spread = besiroglu.refit_resamples(posed, optimum.minimise_objective(posed), 500, lambda _: None)
    logs = {name: np.log(values) for name, values in spread.items()}
    centred = np.stack(
        [spread["E"], logs["A"] - spread["alpha"] * np.log(1e9), logs["B"] - spread["beta"] * np.log(2e10),
         spread["alpha"], spread["beta"]]
    )  # fmt: skip
    np.testing.assert_allclose(np.corrcoef(centred), besiroglu.CORRELATIONS, atol=0.1)
    np.testing.assert_allclose(centred.std(axis=1), besiroglu.CENTRED_ERRORS, rtol=0.1)
    C, alpha, beta = 5.76e23, spread["alpha"], spread["beta"]
    best = (alpha * spread["A"] / (beta * spread["B"]) * (C / 6) ** beta) ** (1 / (alpha + beta))
    answer = allocate_budget(flops=C)
    assert answer.intervals["n"] == pytest.approx(np.quantile(best, [0.05, 0.95]), rel=0.1)
    low, high = answer.intervals["loss"]
    assert low < answer.loss < high < low + 0.1


@pytest.mark.slow
def test_porians_constants_come_from_the_stored_optima():
    table_path("porian/optimal_pairs.csv")
    tuned = next(e for e in porian.EXPERIMENTS if (e.file, e.dataset, e.hparams) == ("summary_df", "rw", "tuned"))
    lines = porian.select_experiment(tables.read_paper_table(TABLES, "porian/optimal_pairs.csv"), tuned)
    C, n, std = tables.float_columns(lines, "flops", "n", "n_star_std")
    a, constant = np.polyfit(np.log(C), np.log(n), 1, w=1 / std)
    middle = np.average(np.log(C), weights=std**-2.0)
    assert np.log(lawbook.PORIAN_FLOPS) == pytest.approx(middle, abs=1e-4)
    assert np.log(lawbook.PORIAN_SIZE) == pytest.approx(a * middle + constant, abs=1e-4)
    assert porian.fit_saturating(lines)[2] == pytest.approx(lawbook.PORIAN_LOSS, rel=1e-4)
    for budget, size in zip(C, n, strict=True):
        assert allocate_budget(flops=budget, law="porian").n == pytest.approx(size, rel=0.15)


def test_repeated_tokens_as_muennighoffs_readme_computes_them():
    answer = allocate_budget(flops=1e22, unique_tokens=25e9, law="muennighoff")
    assert answer.n == pytest.approx(7.02e9, abs=0.01e9)  # the README cuts digits off
    assert answer.repetition.epochs == pytest.approx(9.49, abs=0.005)
    assert 25e9 < answer.repetition.worth_tokens < answer.d
    low, high = answer.intervals["n"]
    assert high > 2 * low and "not identified" in answer.repetition.not_identified


@pytest.mark.full
def test_repetition_of_plenty_is_no_repetition():
    """Of more unique tokens than the budget takes, nothing changes; of fewer, the loss rises, with every law of the
    form."""
    for law in ("muennighoff", "besiroglu"):
        plain, plenty = allocate_budget(flops=1e21, law=law), allocate_budget(flops=1e21, law=law, unique_tokens=1e13)
        assert (plenty.n, plenty.loss) == pytest.approx((plain.n, plain.loss), rel=5e-4)  # its kink lies at the optimum
        scarce = allocate_budget(flops=1e21, law=law, unique_tokens=1e9)
        assert scarce.loss > plain.loss + 0.05
        within = allocate_budget(target_loss=scarce.loss, law=law, unique_tokens=1e9)
        assert within.flops == pytest.approx(1e21, rel=0.02)


def test_a_budget_without_a_best_size_is_refused(tmp_path, capsys):
    """Where repeating and growing change nothing any more, and where a law lacks a term; not N = 0 and numpy's
    warnings."""
    path = tmp_path / "law.json"
    path.write_text(json.dumps({"law": "chinchilla", "params": SARDANA | {"B": 0.0}}))
    for asked in (["--flops=1e30", "--unique-tokens=1e9"], ["--flops=1e20", f"--law={path}"]):
        assert main(["plan", *asked]) == 2
        assert "has no best size for 1e+" in capsys.readouterr().err
    with pytest.raises(BadInput, match="has no best size"):
        assess_overtraining(1e9, 2e10, str(path))
    with pytest.raises(BadInput, match="1000 to 1e\\+40 are looked at"):
        allocate_budget(flops=1e-5)
    for easy in ({"target_loss": 1e6}, {"params": 1e-3}, {"tokens": 1e-3}):
        with pytest.raises(BadInput, match="less than 1000 FLOPs"):
            allocate_budget(**easy)


@pytest.mark.slow
def test_the_pairs_that_muennighoffs_runs_allow():
    from scalelab.laws.law import law as law_lib
    from scalelab.laws.law.objective import huber_log
    from scalelab.laws.solve.pose import pose_problem
    from scalelab.laws.trust import profile

    table_path("datablations/runs_182_fit_set.csv")
    given, loss = muennighoff.read_columns(TABLES)
    posed = pose_problem(muennighoff.LAW, given, loss, huber_log())
    best = optimum.minimise_objective(posed)
    (published_d, _), ours, *ends = lawbook.REPETITION
    assert published_d == float(muennighoff.PUBLISHED["R_D_star"])
    assert tuple(best.params.values()) == pytest.approx(ours, rel=1e-3)
    low, high = profile.profile_params(posed, best, muennighoff.LEVEL)["R_D_star"].interval
    assert high is None and low == pytest.approx(ends[0][0], rel=0.01)
    for r_d, r_n in ends:
        law = law_lib.hold_params(muennighoff.LAW, R_D_star=r_d)
        assert optimum.minimise_objective(pose_problem(law, given, loss, huber_log())).params[
            "R_N_star"
        ] == pytest.approx(r_n, rel=1e-3)


def test_serving_as_sardana_et_al(tmp_path):
    """Figure 1: 13B and 2e12 tokens of inference: a 7B instead saves 1.7e22 FLOPs, 17 %. 30B and 1e13: 13.6B saves 28
    %."""
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps({"law": "chinchilla", "params": SARDANA}))
    answer = allocate_budget(params=13e9, serve_tokens=2e12, law=str(path))
    served = answer.serving
    assert answer.n == pytest.approx(7e9, rel=0.01) and served.saved == pytest.approx(0.17, abs=0.005)
    assert served.plain_total_flops - served.total_flops == pytest.approx(1.7e22, abs=0.05e22)
    other = allocate_budget(params=30e9, serve_tokens=1e13, law=str(path))
    assert other.n == pytest.approx(13.6e9, abs=0.05e9) and other.serving.saved == pytest.approx(0.28, abs=0.005)
    assert answer.loss == pytest.approx(chinchilla_loss(SARDANA, served.plain_n, served.plain_d), abs=1e-9)
    sizes = np.geomspace(1e9, 13e9, 200_001)
    room = answer.loss - SARDANA["E"] - SARDANA["A"] / sizes ** SARDANA["alpha"]
    with np.errstate(invalid="ignore"):
        tokens = (SARDANA["B"] / room) ** (1 / SARDANA["beta"])
    total = np.nanmin((6 * tokens + 2 * 2e12) * sizes)
    assert served.total_flops == pytest.approx(total, rel=1e-6)


def test_serving_nothing_much_changes_nothing():
    plain, served = allocate_budget(flops=1e23), allocate_budget(flops=1e23, serve_tokens=1e3)
    assert served.n == pytest.approx(plain.n, rel=1e-3) and served.serving.saved == pytest.approx(0, abs=1e-6)
    assert served.intervals["n"] == pytest.approx(plain.intervals["n"], rel=0.1)


# Parameters and tokens of the papers: Brown et al. 2020, Rae et al. 2021, Touvron et al. 2023, Llama team 2024.
@pytest.mark.parametrize(
    ("params", "tokens", "verdict", "least", "most"),
    [
        (175e9, 300e9, "undertrained", 0.04, 0.2),
        (280e9, 300e9, "undertrained", 0.02, 0.12),
        (70e9, 1.4e12, "compute-optimal", 0.5, 2.3),  # Chinchilla
        (6.74e9, 2e12, "overtrained", 8, 30),
        (69e9, 2e12, "compute-optimal", 0.7, 3.5),
        (8.03e9, 15e12, "overtrained", 45, 210),
        (405e9, 15.6e12, "compute-optimal", 0.8, 6.5),
    ],
)
def test_known_models_against_the_optimum_of_their_compute(params, tokens, verdict, least, most):
    answer = assess_overtraining(params, tokens)
    low, high = answer.intervals["factor"]
    assert answer.verdict == verdict and least < low < answer.factor < high < most
    assert answer.flops == 6 * params * tokens and 6 * answer.n * answer.d == pytest.approx(answer.flops)
    best = allocate_budget(flops=answer.flops)
    assert (answer.n, answer.best_loss) == pytest.approx((best.n, best.loss))
    assert answer.loss_given_away == pytest.approx(chinchilla_loss(EQ_4, params, tokens) - best.loss)
    cheaper = allocate_budget(target_loss=answer.loss).flops  # the least compute that reaches the same loss
    assert answer.waste == pytest.approx(1 - cheaper / answer.flops, abs=1e-4)


def test_gpt3_by_chinchillas_table():
    """Table 3: the 67B that Gopher's budget pays for, and 175B wants 3.7T tokens, not 300B."""
    answer = assess_overtraining(280e9, 5.76e23 / (6 * 280e9), "chinchilla_1")
    assert answer.n == pytest.approx(67e9, rel=0.02) and answer.size_factor == pytest.approx(280 / 67, rel=0.02)
    assert answer.loss_given_away is None and answer.waste is None and any("not said" in note for note in answer.notes)
    assert allocate_budget(params=175e9, law="chinchilla_1").d == pytest.approx(3.7e12, rel=0.03)


def test_a_budget_far_beyond_the_runs_is_called_extrapolated():
    given = besiroglu.all_points(table_path("chinchilla/points.csv").parents[1])
    largest = max(6 * given.N * given.D)
    assert abs(lawbook.FIGURE_4 / largest - 1) < 0.01
    assert not any("extrapolated" in note for note in allocate_budget(flops=9 * largest).notes)
    assert "77 times the dearest run" in allocate_budget(flops=1e24).notes[-1]
    assert "extrapolated" in assess_overtraining(405e9, 15.6e12).notes[-1]
    assert "extrapolated" in allocate_budget(flops=1e21, law="porian").notes[-1]


def test_device_hours_are_flops():
    answer = allocate_budget(gpu_hours=1e6, machine=load_machine("h100"), mfu=0.4)
    assert answer.flops == pytest.approx(1e6 * 3600 * 0.4 * 989.4e12)
    assert any("40% of 989.4 TFLOP/s (bfloat16)" in note for note in answer.notes)


@pytest.mark.full
def test_a_users_own_fit(tmp_path):
    """`scalelab fit --json` -> `law=PATH`: the same N, D, loss and intervals as the fit's own decision."""
    path, points = tmp_path / "fit.json", table_path("chinchilla/points.csv")
    arguments = ["--columns=N=Model Size,C=Training FLOP,loss=loss", "--drop-top-loss=5", "--bootstrap=200"]
    assert main(["fit", str(points), *arguments, "--target-flops=1e23", f"--json={path}"]) == 0
    (decided,) = json.loads(path.read_text())["allocation"].values()
    answer = allocate_budget(flops=1e23, law=str(path))
    assert (answer.n, answer.d, answer.loss) == pytest.approx((decided["N"], decided["D"], decided["loss"]))
    assert answer.intervals["n"] == pytest.approx(decided["intervals"]["N"], rel=1e-5)
    assert answer.intervals["d"] == pytest.approx(decided["intervals"]["D"], rel=1e-5)
    assert answer.level == 0.9 and answer.n_convention == "column 'Model Size'"
    best = assess_overtraining(decided["N"], decided["D"], str(path))
    assert best.intervals["waste"][1] == pytest.approx(decided["intervals"]["waste"][1], abs=1e-6)
    backwards = allocate_budget(tokens=answer.d, law=str(path))  # each resample's own budget
    assert backwards.flops == pytest.approx(1e23, rel=1e-3)
    low, high = backwards.intervals["n"]
    assert low <= backwards.n <= high < 10 * low
    content = json.loads(path.read_text())
    content["bootstrap"]["misfit"]["weights"] = [[0.0]] * len(content["bootstrap"]["misfit"]["length"])
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput, match="another shape"):
        allocate_budget(flops=1e23, law=str(path))


@pytest.mark.slow
def test_a_users_own_fit_of_a_law_without_a_closed_form(tmp_path):
    path, points = tmp_path / "fit.json", table_path("chinchilla/points.csv")
    arguments = ["--columns=N=Model Size,C=Training FLOP,loss=loss", "--bootstrap=50", "--law=kaplan"]
    assert main(["fit", str(points), *arguments, f"--json={path}"]) == 0
    other = allocate_budget(tokens=1e12, law=str(path))
    low, high = other.intervals["n"]
    assert other.d == 1e12 and low <= other.n <= high and low < high  # the law misses on one side: an end is the value


def test_a_users_own_isoflops(tmp_path):
    path, points = tmp_path / "two.json", table_path("porian/isoflop_points.csv")
    where = "file == 'summary_df' and hparams == 'tuned' and dataset == 'rw' and warmup == 'short'"
    arguments = ["--approach=2", "--columns=N=n,C=flops,loss=loss", f"--where={where}", "--seed-noise"]
    assert main(["fit", str(points), *arguments, "--target-flops=1e20", f"--json={path}"]) == 0
    written = json.loads(path.read_text())
    answer = allocate_budget(flops=1e20, law=str(path))
    assert answer.n == pytest.approx(written["coefficient"] * 1e20 ** written["a"])
    low, high = answer.intervals["n"]
    assert low < answer.n < high and answer.loss is None and answer.intervals["loss"] is None
    with pytest.raises(BadInput, match="gives no loss"):
        allocate_budget(target_loss=2.0, law=str(path))


def test_files_of_other_makes(tmp_path):
    """A study's summary.json, approach 1, and a power law by hand."""
    path = tmp_path / "law.json"
    path.write_text(json.dumps({"fit": {"law": "chinchilla", "params": EQ_4}}))
    assert allocate_budget(flops=1e21, law=str(path)).n == pytest.approx(allocate_budget(flops=1e21).n)
    first = {"a": 0.5, "N_coefficient": 0.1, "a_interval": [0.48, 0.52], "level": 0.8, "frontier": {"C": [1e18, 1e20]}}
    path.write_text(json.dumps(first))
    answer = allocate_budget(flops=1e21, law=str(path))
    assert answer.n == pytest.approx(0.1 * 1e21**0.5) and answer.level == 0.8
    assert answer.intervals["n"] == pytest.approx([answer.n / 100**0.02, answer.n * 100**0.02])  # two decades from 1e19
    path.write_text('{"a": 0.5, "coefficient": 0.1}')
    by_hand = allocate_budget(flops=1e21, law=str(path))
    assert by_hand.n == pytest.approx(answer.n) and by_hand.intervals["n"] is None


def test_every_answer_is_plain_json():
    for law in lawbook.PUBLISHED:
        written = json.dumps(dataclasses.asdict(allocate_budget(flops=1e21, law=law)), allow_nan=False)
        read = json.loads(written)
        assert read["law"] == law and read["source"] and {"n", "d", "loss", "intervals"} <= set(read)
        assert all(math.isfinite(read[name]) for name in ("n", "d", "loss", "flops"))
        json.dumps(dataclasses.asdict(assess_overtraining(1e9, 1e11, law)), allow_nan=False)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "give one of flops, tokens"),
        ({"flops": 1e20, "tokens": 1e9}, "not flops and tokens"),
        ({"flops": -1.0}, "flops=-1: a positive number"),
        ({"tokens": float("nan")}, "a positive number"),
        ({"flops": 1e20, "serve_tokens": 0.0}, "serve_tokens=0: a positive number"),
        ({"flops": 1e20, "law": "chinchila_3"}, "did you mean 'chinchilla_3'"),
        ({"flops": 1e20, "law": "/no/such.json"}, "neither a file nor a published law; known: besiroglu, "),
        ({"target_loss": 1.5}, "its loss is never below 1.817; nearest: --target-loss=1.84"),
        ({"target_loss": 2.0, "unique_tokens": 1e9}, "its loss is never below"),
        ({"gpu_hours": 1e3}, "need a machine and an MFU"),
        ({"gpu_hours": 1e3, "machine": load_machine("h100"), "mfu": 40.0}, "mfu=40: a share"),
        ({"flops": 1e20, "law": "kaplan", "serve_tokens": 1e9}, "use chinchilla_3 or besiroglu"),
        ({"flops": 1e20, "law": "porian", "unique_tokens": 1e9}, "use besiroglu or muennighoff"),
    ],
)
def test_bad_input_is_one_line(asked, message):
    with pytest.raises(BadInput, match=message) as mistake:
        allocate_budget(**asked)
    assert "\n" not in str(mistake.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "holds no law"),
        ('{"law": "downstream", "params": {}}', "splits no budget"),
        ('{"law": "chinchilla", "params": {"E": 1}}', "params lack A, B, alpha, beta"),
        ('{"law": "chinchilla", "params": [1]}', "params lack E"),
        ('{"law": "chinchilla", "params": {"E": "?", "A": 1, "B": 1, "alpha": 1, "beta": 1}}', "could not convert"),
        ('{"law": "mine", "params": {}}', "unknown"),
        ('{"a": "half", "coefficient": 1}', "could not convert"),
    ],
)
def test_a_law_file_that_is_none(tmp_path, text, message):
    (tmp_path / "law.json").write_text(text)
    with pytest.raises(BadInput, match=message):
        allocate_budget(flops=1e20, law=str(tmp_path / "law.json"))


def test_a_table_given_as_a_law_is_to_be_fitted_first(tmp_path):
    (tmp_path / "runs.csv").write_text("N,D,loss\n1,2,3\n")
    with pytest.raises(BadInput, match=r"fit it first: scalelab fit \S*runs.csv --json=FIT.json"):
        allocate_budget(flops=1e20, law=str(tmp_path / "runs.csv"))
