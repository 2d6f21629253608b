"""`scalelab ablate --plan`: what the budgets can't tell, and a power that rests on measured noise, or on a range."""

import json
import math

import pytest

from scalelab import config as configs
from scalelab.__main__ import main
from scalelab.configs import tiny
from scalelab.laws.use.multiplier.design import MOST_BY_LAW
from tests.sweep.ablate.untrained import runs_ended_at, write_ended_run

MODULE = "scalelab.experiments.ablation_variants"
CANNOT = "3 budgets can't predict the largest: E, alpha and A of the baseline's law need 3 budgets below it"


def arguments(*options, budgets="1e9,2e9,4e9", seeds=2):
    sizes = ",".join("16" for _ in budgets.split(","))
    return ["ablate", f"--baseline={MODULE}:plain", f"--variant={MODULE}:qk_norm", f"--budgets={budgets}",
            f"--sizes={sizes}", f"--seeds={seeds}", "--config.model.n_layers=1", *options]  # fmt: skip


def loss_of(name, config):
    flops, seed = float(name.split("-")[1]), int(name[-1])
    return 1.2 + 1.4 * (flops / 1e9) ** -0.2 * (1 + (-1) ** seed * (0.01 if "plain" in name else 0.02))


def planned(capsys, *options, **given):
    assert main(arguments("--plan", "--json", *options, **given)) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def seeds(tmp_path):
    """Runs of two settings with 3 and 2 seeds, one of a third setting, and one that diverged."""
    losses = {1e-3: (2.00, 2.04, 1.98), 2e-3: (1.90, 1.93), 4e-3: (1.7,), 1e-2: (math.inf, 2.5)}
    for rate, row in losses.items():
        for seed, loss in enumerate(row):
            config = tiny.get_config()
            config.optim.peak_lr, config.train.seed = rate, seed
            write_ended_run(tmp_path / "earlier" / f"lr{rate:g}-s{seed}", configs.resolve(config), loss)
    apart = [[math.log(loss) for loss in losses[rate]] for rate in (1e-3, 2e-3)]
    squares = sum((each - sum(logs) / len(logs)) ** 2 for logs in apart for each in logs)
    return tmp_path / "earlier", (squares / 3) ** 0.5


@pytest.mark.full
def test_the_plan_says_that_three_budgets_cannot_predict_the_third(capsys):
    assert CANNOT in planned(capsys)["limits"][0]
    assert main(arguments("--plan")) == 0
    assert f"WARNING: {CANNOT}, and there are 2; add one, such as 5e+08" in capsys.readouterr().out
    for options, given in ((["--fix=E=1.2"], {}), ([], {"budgets": "1e9,2e9,4e9,8e9"})):
        assert planned(capsys, *options, **given)["limits"] == []


@pytest.mark.full
def test_the_study_says_it_before_its_first_run_and_then_the_power_by_its_own_noise(tmp_path, capsys):
    with runs_ended_at(loss_of) as names:
        assert main(arguments("--untuned", f"--workdir={tmp_path / 'three'}")) == 0
        assert CANNOT in capsys.readouterr().err and len(names) == 12
        assert main(arguments("--untuned", f"--workdir={tmp_path / 'four'}", budgets="1e9,2e9,4e9,8e9")) == 0
    said = capsys.readouterr().err
    assert CANNOT not in said and said.index("measured on 12 runs below the largest rung") < said.index("predicted at")
    assert "by the law of the baseline's 3 rungs that ran" in said
    plan = planned(capsys, f"--workdir={tmp_path / 'four'}", "--untuned", budgets="1e9,2e9,4e9,8e9")
    assert plan["noise"] == pytest.approx(0.0138, rel=0.3) and plan["correlation"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.full
def test_a_study_in_which_nothing_scatters_ends(tmp_path):
    factors = {"plain": 1.0, "qk_norm": 1.3}

    def loss_without_noise(name, config):
        side, flops, _ = name.split("-")
        return 2.5 * (factors[side] * float(flops)) ** -0.01

    with runs_ended_at(loss_without_noise):
        options = ["--untuned", f"--workdir={tmp_path / 'study'}"]
        assert main(arguments(*options, budgets="1e9,2e9,4e9,8e9")) == 0
    assert (tmp_path / "study" / "report.html").exists()


@pytest.mark.full
def test_noise_comes_from_earlier_runs_that_differ_in_their_seed_alone(seeds, capsys):
    folder, noise = seeds
    plan = planned(capsys, f"--noise={folder}", seeds=5)
    assert plan["noise"] == pytest.approx(noise, rel=1e-6) and plan["smallest_effect"] is not None
    assert main(arguments("--plan", f"--noise={folder}", seeds=5)) == 0
    text = capsys.readouterr().out
    assert f"noise of a run's loss {noise:.2%} (90%: " in text and f"measured on 5 runs in {folder}" in text
    (folder / "lr0.001-s0" / "record.json").write_text("{")
    assert main(arguments("--plan", f"--noise={folder}")) == 0
    assert f"measured on 4 runs in {folder} (1 damaged: `scalelab runs` says why)" in capsys.readouterr().out
    low, smallest, high = sorted(each for each in plan["by_noise"].values())
    assert low < smallest == plan["smallest_effect"] < high and f"({low - 1:.1%} to {high - 1:.1%} by the error" in text


@pytest.mark.full
def test_where_no_noise_is_known_the_power_is_printed_for_a_range(tmp_path, capsys):
    plan = planned(capsys, f"--workdir={tmp_path / 'new'}", seeds=5)
    assert plan["noise"] is None and plan["smallest_effect"] is None
    assert list(plan["by_noise"]) == ["0.002", "0.005", "0.01", "0.02"]
    assert main(arguments("--plan")) == 0
    assert "more than any if the noise is 2.0%" in capsys.readouterr().out  # two seeds on three rungs
    assert main(arguments("--plan", seeds=5)) == 0
    text = capsys.readouterr().out
    assert "noise of a run's loss not known" in text
    for noise, least in plan["by_noise"].items():
        assert f"{least - 1:.1%} if the noise is {float(noise):.1%}" in text
    assert planned(capsys, "--noise=0.01", seeds=5)["smallest_effect"] == pytest.approx(plan["by_noise"]["0.01"])
    assert planned(capsys, "--noise=0.01", "--correlation=1")["smallest_effect"] == 1.02  # --worth: pairs are equal
    dear, cheap = (
        planned(capsys, "--noise=0.002", f"--worth={worth}", seeds=5)["smallest_effect"] for worth in (1.1, 1.02)
    )
    # In a narrower region adopt and reject err together: a wider interval. The law's error grows with the effect.
    assert 1 < dear / cheap < 1.1 / 1.02 * (dear / cheap) ** MOST_BY_LAW


@pytest.mark.full
def test_bad_noise_and_values_of_the_law_are_refused_before_any_run(seeds, tmp_path, capsys):
    folder, _ = seeds
    single = folder / "lr0.004-s0"
    for options, message in (
        (
            ["--plan", f"--noise={single}"],
            "no two runs in it that ended differ in train.seed alone; nearest: --noise=0.01",
        ),
        (["--plan", f"--noise={tmp_path}"], "holds no run"),
        (["--plan", "--noise=-1"], "'-1' is not a number above zero, nor a folder of runs; nearest: --noise=0.01"),
        (["--plan", "--correlation=1.5"], "--correlation=1.5: a correlation lies in -1 to 1"),
        (["--plan", "--noise=nan"], "'nan' is not a number above zero, nor a folder of runs"),
        (["--plan", "--fix=beta=2"], "--fix beta=2: only E and alpha of E + A C^-alpha can be given"),
        (["--untuned", "--fix=alpha=0", f"--workdir={tmp_path / 'study'}"], "--fix alpha=0: it is above zero"),
    ):
        assert main(arguments(*options)) == 2
        error = capsys.readouterr().err.strip().splitlines()
        assert message in error[-1] and not (tmp_path / "study").exists()
