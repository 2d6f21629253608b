"""`scalelab ablate`'s tuned values: flat rungs count, and values that their own trials speak against are named."""

import json
import math
import pathlib
import re

import pytest

from checks.statistics import carrying
from scalelab.__main__ import main
from scalelab.sweep.ablate import carry
from tests.sweep.ablate.untrained import runs_ended_at

KEY = "optim.peak_lr"
BUDGETS = (1e10, 2e10, 4e10, 8e10)
# Real tuning trials of QK-norm (2026-11-26): `ablate --baseline=tiny --variant=QK --seeds=2` at these budgets.
TRIED = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
TRIALS = {
    1e10: (4.0595, 3.3689, 3.1800, 3.0705, 2.9351, 2.8437, 2.9688),
    2e10: (3.6243, 3.1815, 2.9960, 2.8511, 2.8292, 2.7847, 3.1362),
    4e10: (3.0579, 2.7901, 2.6894, 2.6226, 2.5732, 2.5386, 2.6420),
}
FILE = """from scalelab.configs import tiny


def get_config():
    config = tiny.get_config()
    config.model.qk_norm = True
    return config
"""


def budget_of(name):
    """The FLOPs in a run's name: tune-SIDE-FLOPS-peak_lrxFACTOR or SIDE-FLOPS-sSEED."""
    return float(re.search(r"-([0-9.]+e[+][0-9]+)-", name)[1])


def measured(name, config):
    """The loss of a trial as it was measured; between and beyond them, and at the largest budget, along lines."""
    row = TRIALS[min(budget_of(name), 4e10)]
    rate = config.optim.peak_lr
    low = max(i for i, each in enumerate(TRIED[:-1]) if i == 0 or each <= rate)
    share = math.log(rate / TRIED[low]) / math.log(2)
    loss = row[low] * (row[low + 1] / row[low]) ** share
    return loss * (budget_of(name) / min(budget_of(name), 4e10)) ** -0.05 * noise_of(name)


def noise_of(name):
    """What the seed of a run that counts does to its loss."""
    side = 1 if "qk" in name else 2
    return 1 + {"-s1": 0.003, "-s2": -0.002}.get(name[-3:], 0.0) * side


@pytest.fixture
def ablate(tmp_path, capsys):
    variant = tmp_path / "qk.py"
    variant.write_text(FILE)

    def run(loss_of, *options):
        folder = tmp_path / "study"
        arguments = ["ablate", "--baseline=tiny", f"--variant={variant}", "--budgets=1e10,2e10,4e10,8e10", "--seeds=2",
                     "--sizes=8,16,16,24", f"--workdir={folder}", *options]  # fmt: skip
        with runs_ended_at(loss_of):
            assert main(arguments) == 0
        return folder, capsys.readouterr()

    return run


@pytest.mark.full
def test_values_are_carried_near_the_best_of_every_rung_also_where_the_losses_hardly_bend(ablate):
    folder, printed = ablate(measured)
    tuned = {side["name"]: side for side in json.loads((folder / "tuned.json").read_text())["sides"]}["qk"]
    assert tuned["problems"] == [] and "through 3 of 3 rungs" in tuned["how"][KEY]
    rates = {each["C"]: each["values"][KEY][0] for each in tuned["settings"]}
    assert all(0.04 < rates[flops] < 0.08 for flops in TRIALS)  # each rung's trials are best at .08, and near it at .04
    chosen = {each["C"]: each["chosen"][KEY] for each in tuned["optima"]}
    assert {flops: each["value"] for flops, each in chosen.items()} == {flops: rates[flops] for flops in TRIALS}
    assert all(each["above_best"] < 0.015 and each["best_trial"] == pytest.approx(0.08) for each in chosen.values())
    runs = [json.loads(path.read_text()) for path in folder.glob("runs/qk-1e+10-s*/config.json")]
    assert {run["optim"]["peak_lr"] for run in runs} == {rates[1e10]} and "WARNING" not in printed.out


@pytest.mark.full
def test_a_value_that_its_own_trials_speak_against_is_named_in_all_places(ablate):
    """At the least budget the best lies three octaves above where the line of all three rungs goes."""

    def loss_of(name, config):
        flops, rate = budget_of(name), config.optim.peak_lr
        best = 0.08 if flops < 1.5e10 and "qk" in name else 0.01
        return 2.5 * math.exp(0.03 * math.log2(rate / best) ** 2) * flops**-0.01 * noise_of(name)

    folder, printed = ablate(loss_of)
    sides = {side["name"]: side["problems"] for side in json.loads((folder / "tuned.json").read_text())["sides"]}
    line = next(line for line in sides["qk"] if "FLOPs is" in line and "above the best trial's" in line)
    assert sides["tiny"] == [] and line.startswith("optim.peak_lr of qk at 1e+10 FLOPs is 0.0") and ", at 0.08," in line
    variant = json.loads((folder / "summary.json").read_text())["variants"][0]
    assert line in variant["problems"] and line in variant["verdict"] and variant["verdict"].startswith("undecided")
    assert f"WARNING: {line}" in printed.err and "FLOPs is 0.0" in (folder / "report.html").read_text()


def rows_of(flops=1e10):
    pairs = zip(TRIED, TRIALS[flops], strict=True)
    return [{"side": "qk", "C": flops, KEY: rate, "loss": loss} for rate, loss in pairs]


def test_a_miss_is_measured_between_the_trials_beside_it():
    at_trial = carry.measure_miss(rows_of(), KEY, 0.02, 0.01)
    assert at_trial.above == pytest.approx(3.0705 / 2.8437 - 1) and at_trial.best == 0.08
    assert at_trial.error == pytest.approx(0.01 * 2**0.5)
    at_best = carry.measure_miss(rows_of(), KEY, 0.08, 0.01)
    assert at_best.above == pytest.approx(0, abs=1e-12) and at_best.error == pytest.approx(0, abs=1e-12)
    former = carry.measure_miss(rows_of(), KEY, 0.0333, 0.0125)  # the value of the line without its flat rungs
    assert former.above > 0.04 and former.above > carry.SURE_MISS * former.error
    lost = [row | {"loss": math.inf} if row[KEY] > 0.1 else row for row in rows_of()]
    assert carry.measure_miss(lost, KEY, 0.16, 0.01).above == pytest.approx(4.0595 / 2.8437 - 1)  # as the worst


def test_sound_values_of_noisy_bowls_are_seldom_accused_and_moved_ones_are_found():
    cell = carrying.score_cell(carrying.BOWLS["steep below"], 0.015, studies=20)
    assert cell["accused"] <= 1 and cell["found"] > 0.9 * cell["missed"] > 0
    assert cell["cost"] < cell["cost_before"] and cell["above"] == 0


def test_the_committed_counts_hold_the_promise_of_the_rule():
    result = json.loads((pathlib.Path(carrying.RESULTS) / "carrying.json").read_text())
    accused, sound = (sum(cell[key] for cell in result["cells"]) for key in ("accused", "sound"))
    assert result["studies"] == 200 and accused < 0.05 * sound
