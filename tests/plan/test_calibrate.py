"""Measured runs beside the plan: what they make of its efficiencies."""

import math

import pytest

from scalelab.errors import BadInput
from scalelab.hardware.chips import Chip
from scalelab.plan.calibrate import calibrate_efficiency
from scalelab.plan.machine.machine import Machine, load_machine
from scalelab.plan.step.time import step_time
from scalelab.record import records
from scalelab.train.single import train_single
from tests.plan.tiny import run_folder, static, tiny

# Slow enough that an operation's launch, whose time has no range, counts for nothing.
CPU = Machine(Chip("CPU", {"float32": 1e9}, 2**34, 1e8, 1e8, 1, "made up"), 1, 1e8, None, "made up")


def test_runs_of_one_program_move_the_rates_and_keep_the_chip_s_range(tmp_path):
    here, before = CPU, step_time(static(), CPU)
    run_folder(tmp_path / "a", [1.0, 900.0, 1000.0, 1000.0, 5000.0])  # the first compiled
    run_folder(tmp_path / "b", [1.0, 4000.0, 4000.5], config={"optim.peak_lr": 2e-3})
    calibration = calibrate_efficiency(tmp_path, here)
    (one,) = calibration.runs
    assert len(one.folders) == 2 and calibration.spread is None
    assert one.tokens_per_s == pytest.approx(2000, rel=1e-3)  # the geometric mean of two medians
    again = step_time(static(), here, calibration.efficiency)
    assert again.tokens_per_s == pytest.approx(2000, rel=1e-3)  # what was measured is what is now expected
    assert again.high_s / again.low_s == pytest.approx(before.high_s / before.low_s, rel=1e-3)
    assert (calibration.low, calibration.high) == pytest.approx(
        (again.total_s / again.high_s, again.total_s / again.low_s)
    )
    assert any("takes 3 programs" in note for note in calibration.notes)


def test_several_programs_give_a_range_of_their_own(tmp_path):
    here, ratios = CPU, {2: 0.45, 4: 0.5, 8: 0.55, 16: 0.5}
    before = step_time(static(), here)
    for batch, ratio in ratios.items():
        rate = ratio * step_time(static(**{"train.global_batch": batch}), here).tokens_per_s
        run_folder(tmp_path / str(batch), [1.0, rate, rate + 1e-6], config={"train.global_batch": batch})
    calibration = calibrate_efficiency(tmp_path, here)
    logs = [math.log(ratio) for ratio in ratios.values()]
    mean = sum(logs) / 4
    spread = math.sqrt(sum((x - mean) ** 2 for x in logs) / 3)
    assert calibration.factor == pytest.approx(math.exp(mean), rel=1e-4)
    assert calibration.spread == pytest.approx(spread, rel=1e-4)
    # Student's t with 3 degrees of freedom, 95 %: 2.353 (any table)
    assert math.log(calibration.high) == pytest.approx(2.3534 * spread * math.sqrt(1.25), rel=1e-3)
    step = step_time(static(), here, calibration.efficiency)
    assert step.high_s / step.total_s == pytest.approx(calibration.high, rel=1e-6)
    assert step.total_s / step.low_s == pytest.approx(calibration.high, rel=1e-6)
    assert step.high_s / step.low_s < 0.7 * before.high_s / before.low_s  # narrower than the chip's


def test_runs_that_say_nothing_are_left_out_with_a_reason(tmp_path):
    rates = [1.0, 900.0, 1000.0]
    run_folder(tmp_path / "good", rates)
    with pytest.raises(BadInput, match=r"no run on H100 SXM to learn from: .*good: ran on cpu"):
        calibrate_efficiency(tmp_path, load_machine("h100"))
    run_folder(tmp_path / "packed", rates, pack={"checkpoints": "../../packs/p/checkpoints", "trial": "a"})
    run_folder(tmp_path / "short", rates[:2])
    run_folder(tmp_path / "other", rates, device="NVIDIA H100 80GB HBM3")
    run_folder(tmp_path / "fake", rates, mesh={"data": 8, "devices": 8})
    calibration = calibrate_efficiency(tmp_path, load_machine("cpu"))
    assert [run.folders for run in calibration.runs] == [(str(tmp_path / "good"),)]
    message = " ".join(calibration.notes)
    for reason in (
        "packed: one of a pack",
        "short: less than two",
        "other: ran on NVIDIA H100",
        "fake: devices of one CPU",
    ):
        assert reason in message


@pytest.mark.slow
def test_runs_that_were_really_trained(tmp_path):
    for name, batch in {"a": 2, "b": 4, "c": 8}.items():
        train_single(tiny(**{"train.global_batch": batch, "train.steps": 60}), tmp_path / name)
    here = load_machine("cpu")
    calibration = calibrate_efficiency(tmp_path, here)
    assert sorted(run.folders for run in calibration.runs) == [(str(tmp_path / name),) for name in "abc"]
    for run, batch in zip(sorted(calibration.runs, key=lambda run: run.folders), (2, 4, 8), strict=True):
        step = step_time(static(**{"train.global_batch": batch}), here, calibration.efficiency)
        lines = records.read_metrics(run.folders[0])
        assert min(x["tokens_per_s"] for x in lines if "tokens_per_s" in x) <= run.tokens_per_s
        assert step.low_s <= batch * 32 / run.tokens_per_s <= step.high_s  # the range holds what it was made of


def test_a_run_of_a_version_without_a_key_counts(tmp_path):
    run_folder(tmp_path / "a", [1.0, 900.0, 1000.0])
    config = records.read_json(tmp_path / "a" / "config.json")
    del config["eval"]["patience"]
    records.write_json(tmp_path / "a" / "config.json", config)
    (one,) = calibrate_efficiency(tmp_path, CPU).runs
    assert one.tokens_per_s == pytest.approx(950, rel=0.1)
