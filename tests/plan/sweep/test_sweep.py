"""Whole sweeps before they start: against the study's own runs, simulated studies, and studies that were run."""

import json
import pathlib

import numpy as np
import pytest

from scalelab import api
from scalelab import config as config_lib
from scalelab.errors import BadInput
from scalelab.experiments import isoflop, ladder_runs
from scalelab.laws.fits.fitting import fit
from scalelab.laws.law.chinchilla_optimum import ChinchillaParams, loss_at
from scalelab.laws.law.chinchilla_optimum import optimal_allocation as best_split
from scalelab.laws.law.names import LAWS
from scalelab.laws.law.objective import huber_log
from scalelab.laws.solve import optimum
from scalelab.laws.solve.pose import pose_problem
from scalelab.plan.budget.book import LawBook, constant_params
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.sweep.forecast import forecast_intervals
from scalelab.plan.sweep.sweep import PlannedRun, load_planned_study, sweep_plan, wall_hours
from scalelab.precision.policy import POLICIES
from scalelab.sweep import trials
from tests.laws.examples import QUICKSTART_LIKE

ROOT = pathlib.Path(__file__).parents[3]
STUDY = ROOT / "experiments" / "isoflop.py"
SMALL = [
    "--config=configs/quickstart.py",
    "--budgets=5e9,1e10,2e10",
    "--sizes=16,24,32",
    "--holdout-flops=8e10",
    "--checks=lr",
]


@pytest.fixture(scope="module")
def small():
    return sweep_plan(STUDY, load_machine("h100"), SMALL, devices=8, price_per_hour=2.0)


@pytest.mark.full
def test_a_study_lists_the_runs_that_it_trains(small):
    """Of the same function; what each costs is what its record will say."""
    study = isoflop.parse_arguments(SMALL)[0]
    trained = ladder_runs.fit_runs(study) | ladder_runs.check_runs(study)
    assert [run.name for run in small.runs] == list(trained) and len(trained) == 9 + 4
    for run, config in zip(small.runs, trained.values(), strict=True):
        assert run.role == config.log.role and run.steps == config.train.steps
        assert (run.n, run.d) == ladder_runs.size_and_tokens(config)
        budget = float(run.name.split("-")[1])
        assert run.flops == pytest.approx(budget, rel=0.05)
    ours = load_planned_study(STUDY, [*SMALL, "--config.train.seed=7"]).runs
    assert {config.train.seed for config in ours.values()} == {7}


@pytest.mark.full
def test_sums_packs_and_cost(small):
    runs = small.runs
    assert small.flops == pytest.approx(3 * 5e9 + 3 * 1e10 + 3 * 2e10 + 4 * 5e9, rel=0.02)
    assert small.tokens == sum(run.d for run in runs)
    assert small.device_hours == pytest.approx(sum(run.hours for run in runs))
    assert small.cost == pytest.approx(2.0 * small.device_hours) and small.device_hours_low <= small.device_hours
    # Two learning-rate checks differ in traced values only; all else differs in width, in steps or in when it is run.
    assert sorted(len(names) for names in small.packs.values()) == [1] * 9 + [2, 2]
    assert small.too_large == () and 0 < small.largest_bytes < small.capacity_bytes
    longest = max(sum(run.hours for run in runs if run.name in names) for names in small.packs.values())
    assert longest <= small.wall_hours < small.device_hours / 4  # eight devices, eleven packs


def run_of(name, hours, devices=1):
    return PlannedRun(name, "", "", 1, 1, 1.0, 1, devices, 1, True, hours, hours, hours, None)


def test_packs_go_to_the_first_free_device():
    runs = [run_of(str(i), hours) for i, hours in enumerate([3.0, 2.0, 2.0, 1.0])]
    packs = {str(i): [str(i)] for i in range(4)}
    assert wall_hours(runs, packs, 1) == 8.0
    assert wall_hours(runs, packs, 2) == 4.0  # 3 and 1 on one, 2 and 2 on the other
    assert wall_hours(runs, {"a": ["0", "1"], "b": ["2", "3"]}, 2) == 5.0
    assert wall_hours([run_of("0", 3.0, 4), run_of("1", 2.0, 4)], {"0": ["0"], "1": ["1"]}, 8) == 3.0


def test_a_configs_sweep():
    planned = sweep_plan(ROOT / "configs" / "lr_seeds.py", load_machine("a100"))
    assert len(planned.runs) == 8 and len(planned.packs) == 1 and planned.cost is None
    assert len({(run.n, run.d, run.memory_bytes, run.hours) for run in planned.runs}) == 1
    assert planned.wall_hours == pytest.approx(8 * planned.runs[0].hours)
    assert planned.forecast is None and any("N has one value" in note for note in planned.notes)
    assert any("8 runs of a pack" in note for note in planned.notes)


def test_a_name_that_we_do_not_ship_is_refused_with_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"no study or config 'isoflp'.*isoflop"):
        api.plan_sweep("isoflp")
    with pytest.raises(BadInput, match=r"no config file 'experiments/isoflop.py'"):
        api.plan_sweep("experiments/isoflop.py")


@pytest.mark.full
def test_a_study_or_a_config_of_ours_is_planned_by_its_name_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(api.plan_sweep("lr_seeds").runs) == 8
    names = {run.name for run in api.plan_sweep("isoflop", study=SMALL[1:]).runs}
    assert names == {*load_planned_study(STUDY, SMALL[1:]).runs}


def test_a_study_of_learning_rates_tells_its_runs_too():
    runs = load_planned_study(ROOT / "experiments" / "mup_transfer.py", ["--quick", "--widths=32,64"]).runs
    assert len(runs) == 2 * 2 * 5 * 3 and len(trials.group_into_packs(runs)) == 4
    each = load_planned_study(ROOT / "experiments" / "precision.py", ["--quick"]).runs
    usual = [policy for policy in POLICIES.values() if policy.rounding == "nearest"]
    assert len(each) == 2 * (len(usual) + 5 + 3) and {config.train.steps for config in each.values()} == {80, 20}


@pytest.mark.slow
def test_the_other_studies_that_train_tell_their_runs():
    runs = load_planned_study(ROOT / "experiments" / "optimizers", ["--only=adamw,lion", "--trials=6", "--quick"]).runs
    assert (
        len(runs) == 2 * (9 + 6 + 3 * (2 + 3)) and len(trials.group_into_packs(runs)) == 2
    )  # scan, tuning, three points on seeds
    five = load_planned_study(ROOT / "checks/statistics/confirm.py", ["--quick"]).runs
    assert len(five) == 5 * (26 + 4 + 1) and len({config.data.split_seed for config in five.values()}) == 3


def grid_of(law, budgets, sizes=5):
    best = best_split(law, np.array(budgets))
    N = (best.N[:, None] * np.geomspace(1 / 3, 3, sizes)).ravel()
    C = np.repeat(budgets, sizes)
    return {"N": N, "D": C / (6 * N), "C": C}


@pytest.mark.full
def test_the_forecast_is_what_simulated_studies_show():
    """The scatter of fitted values over studies of normal noise, and the width of a study's own intervals."""
    noise, at = 0.004, 1e13
    runs = grid_of(QUICKSTART_LIKE, [1.25e11, 2.5e11, 5e11, 1e12, 2e12], 7)
    book = LawBook("truth", "", "total", "", LAWS["chinchilla"], constant_params(QUICKSTART_LIKE._asdict()))
    actual = {each.name: each for each in forecast_intervals(book, noise, runs, at).expected}
    truth = best_split(QUICKSTART_LIKE, at)
    assert actual["N"].value == pytest.approx(truth.N) and actual["loss"].value == pytest.approx(truth.loss)
    fits = []
    for seed in range(50):
        losses = loss_at(QUICKSTART_LIKE, runs["N"], runs["D"])
        losses = losses * np.exp(noise * np.random.default_rng(seed).standard_normal(len(losses)))
        posed = pose_problem(LAWS["chinchilla"], {"N": runs["N"], "D": runs["D"]}, losses, huber_log())
        params = ChinchillaParams(**optimum.minimise_objective(posed).params)
        fits.append([params.E, params.alpha, params.beta, np.log(best_split(params, at).N)])
    scatter = dict(zip(("E", "alpha", "beta", "N"), np.std(fits, axis=0), strict=True))
    for name, sd in scatter.items():
        assert actual[name].sd == pytest.approx(sd, rel=0.3), name
    # Among the runs the law is sure, and one run is as noisy as any.
    amid = forecast_intervals(book, noise, runs, 5e11).expected[-1]
    assert amid.name == "loss" and noise < amid.sd < 1.2 * noise
    decided = fit(runs | {"loss": losses}, bootstrap=200, identify=False, target_flops=[at]).decisions[0]
    own = np.log([decided.N.high / decided.N.low, decided.loss.high / decided.loss.low])
    ours = np.log([actual[name].high / actual[name].low for name in ("N", "loss")])
    np.testing.assert_allclose(ours, own, rtol=0.5)


def test_half_the_noise_or_four_times_the_runs_halve_the_interval():
    book = LawBook("truth", "", "total", "", LAWS["chinchilla"], constant_params(QUICKSTART_LIKE._asdict()))
    runs = grid_of(QUICKSTART_LIKE, [1e11, 1e12, 1e13])
    four = {
        name: np.repeat(column, 4) * (1 + 1e-3 * np.tile(np.arange(4), len(column))) for name, column in runs.items()
    }
    four["C"] = 6 * four["N"] * four["D"]
    plain, quiet, many = (
        {each.name: each.sd for each in forecast_intervals(book, noise, given, 1e14).expected}
        for noise, given in ((0.08, runs), (0.04, runs), (0.08, four))
    )
    assert plain["alpha"] / quiet["alpha"] == pytest.approx(2, rel=0.02)
    assert plain["N"] / many["N"] == pytest.approx(2, rel=0.02)


@pytest.mark.slow
def test_the_quickstarts_forecast_is_as_wide_as_its_studies_were():
    planned = sweep_plan(STUDY, load_machine("h100"))
    assert len(planned.runs) == 26 + 4 + 1 and planned.forecast.runs == 26
    (loss,) = [each for each in planned.forecast.expected if each.name == "loss"]
    widths = [each["width"] for each in json.loads(isoflop.EARLIER_RESULTS.read_text())["studies"]]
    assert min(widths) < (loss.high - loss.low) / loss.value < max(widths)
    held = planned.runs[-1]
    assert held.role == "holdout" and held.flops == pytest.approx(3.2e12, rel=0.01)
    assert any("5 runs of another role" in note for note in planned.notes)


@pytest.mark.full
def test_a_law_and_noise_of_the_users_own(tmp_path):
    path = tmp_path / "law.json"
    path.write_text(json.dumps({"law": "chinchilla", "params": QUICKSTART_LIKE._asdict()}))
    planned = sweep_plan(STUDY, load_machine("h100"), SMALL, law=str(path), noise=0.02)
    assert planned.forecast.params == QUICKSTART_LIKE._asdict() and planned.forecast.noise == 0.02
    assert planned.forecast.target_flops == 8e10
    split = sweep_plan(STUDY, load_machine("h100"), SMALL, law="kaplan")
    assert split.forecast is None and "a power law of N" in split.notes[-1]


@pytest.mark.parametrize(
    ("file", "arguments", "message"),
    [
        ("configs/no.py", [], "no config file"),
        ("configs/tiny.py", [], "tells no runs"),
        ("configs/lr_seeds.py", ["--quick"], "'--quick' is not one of --config.group.key=value"),
        ("experiments/isoflop.py", ["--quick", "--sizes=16"], "--quick has its own budgets"),
        ("experiments/isoflop.py", ["--quik"], "did you mean '--quick'"),
    ],
)
def test_bad_input_is_one_line(file, arguments, message):
    with pytest.raises(BadInput, match=message) as mistake:
        load_planned_study(ROOT / file, arguments)
    assert "\n" not in str(mistake.value)


def test_a_configs_sweep_takes_overrides():
    runs = load_planned_study(ROOT / "configs" / "lr_seeds.py", ["--config.train.steps=7"]).runs
    assert {config.train.steps for config in runs.values()} == {7}
    assert all(config_lib.static(config).model.d_model == 64 for config in runs.values())
