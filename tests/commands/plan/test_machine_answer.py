"""`scalelab plan` of a law's question on a machine: the first lines, the money, the count that meets the days."""

import json
import shlex

import pytest

from scalelab import config as config_lib
from scalelab.__main__ import main
from scalelab.model import count
from scalelab.plan.budget.shape import build_config, find_shape
from tests.quick import one_in

RUN = ["--params=8e9", "--tokens=15e12", "--hardware=h100"]


def answer(capsys, *argv):
    assert main(["plan", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *argv):
    assert main(["plan", *argv]) == 2
    line = capsys.readouterr().err
    assert len(line.strip().splitlines()) == 1
    return line


@pytest.mark.parametrize("params", one_in(3, [8e9, 1.3e8, 405e9]))
def test_a_shape_has_the_parameters_that_its_model_has(params):
    """8e9 gives Llama 3 8B to the last parameter; every size is met within 15 %."""
    shape = find_shape(params)
    model = config_lib.static(config_lib.resolve(build_config(shape, 1e12, 8, "bf16"))).model
    assert count.count_parameters(model)["total"] == shape.total == pytest.approx(params, rel=0.15)
    for convention in ("non_embedding", "kaplan", "chinchilla"):
        assert find_shape(params, convention).counted == pytest.approx(params, rel=0.15)
        counted = find_shape(shape.counted, convention)
        model = config_lib.static(config_lib.resolve(build_config(counted, 1e12, 8, "bf16"))).model
        assert count.count_parameters(model)[convention] == counted.counted
    assert params != 8e9 or shape.total == 8_030_261_248


@pytest.mark.full
def test_days_are_met_by_the_fewest_devices_that_were_tried(capsys):
    result = answer(capsys, *RUN, "--days=30")
    days = {each["devices"]: each["days"] for each in result["counts"]}
    pick = result["plan"]["devices"]
    assert result["plan"]["days"] == pytest.approx(days[pick]) and days[pick] <= 30
    assert all(d > 30 for n, d in days.items() if n < pick) and result["plan"]["memory_bytes"]["fits"]
    low, high = result["loss_interval"]
    assert low < result["loss"] < high and result["best_loss"] < result["loss"]
    assert result["d"] == pytest.approx(15e12, rel=1e-3) and result["n"] == 8_030_261_248


@pytest.mark.full
def test_the_first_four_lines_are_the_answer_and_the_command_plans_it_again(capsys):
    assert main(["plan", *RUN, "--devices=512"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("512 x H100 SXM: ") and "device-hours" in lines[0]
    assert lines[1].startswith("model: 8.03e+09 parameters x 1.5e+13 tokens") and "aspect128" in lines[1]
    assert lines[2].startswith("plan: ") and "MFU" in lines[2] and "fits" in lines[2]
    assert lines[3].startswith("expected loss 2.0214 ") and "90%" in lines[3] and not lines[4]
    (command,) = (line.split(": ", 1)[1] for line in lines if line.startswith("again"))
    again = answer(capsys, *shlex.split(command)[2:])
    result = answer(capsys, *RUN, "--devices=512")
    assert again["time_s"] == result["plan"]["time_s"] and again["params"] == result["plan"]["params"]
    assert again["days"] == result["plan"]["days"] and again["mesh"] == result["plan"]["mesh"]


@pytest.mark.full
def test_a_small_card_gets_the_levers_that_a_config_gets_and_says_so(capsys):
    """One RTX 4090 holds 5e9 parameters as configs/galore_7b.py holds its own; two hold nothing of it."""
    argv = ["--params=5e9", "--tokens=1e9", "--hardware=rtx4090"]
    assert main(["plan", *argv, "--devices=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "updates per_layer" in lines[2] and "galore8bit in bf16_stochastic" in lines[2] and "fits" in lines[2]
    (note,) = (line for line in lines if "as it is; changed for it" in line)
    assert all(key in note for key in ("optim.name", "precision.name", "train.global_batch"))
    (command,) = (line.split(": ", 1)[1] for line in lines if line.startswith("again"))
    again, result = answer(capsys, *shlex.split(command)[2:]), answer(capsys, *argv, "--devices=1")
    assert again["verdict"]["fits"] and again["days"] == result["plan"]["days"] and again["tokens"] == result["d"]
    assert result["d"] == pytest.approx(1e9, rel=1e-4)


@pytest.mark.full
@pytest.mark.parametrize(("tokens", "words"), [("1e9", "4 times less"), ("5e10", ""), ("15e12", "150 times the most")])
def test_a_batch_beyond_what_its_rule_was_fitted_on_is_said(capsys, tokens, words):
    assert main(["plan", "--params=1e8", f"--tokens={tokens}", "--hardware=h100", "--devices=8"]) == 0
    (note,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note: batch of "))
    assert note.endswith("(Li et al. 2025)") if not words else words in note and "fitted on 4e+09 to 1e+11" in note


@pytest.mark.full
def test_money_is_spent_and_not_more(capsys):
    """The dearer machine pays as many device-hours less; both are answered, the lower loss first."""
    result = answer(capsys, "--budget=$200k", "--hardware=h100:2.5,a100:2.5", "--devices=256")
    assert 0.99 * 200_000 < result["plan"]["cost"] <= 200_000
    (other,) = result["others"]
    assert result["plan"]["hardware"] == "H100 SXM" and other["plan"]["hardware"] == "A100 80GB SXM"
    assert result["loss"] < other["loss"] and result["n"] > other["n"]
    # The best split by the law: the loss cannot be lower at these FLOPs.
    assert result["loss"] == pytest.approx(result["best_loss"], rel=1e-3)
    hours = answer(capsys, "--gpu-hours=80000", "--hardware=h100", "--devices=256")
    assert hours["n"] == result["n"] and hours["d"] == result["d"] and hours["plan"]["cost"] is None


@pytest.mark.full
def test_what_no_count_does_names_the_nearest_that_works(capsys):
    line = refusal(capsys, *RUN, "--days=1")
    assert "nearest: --days=" in line
    nearest = line.split("nearest: ")[1].split()[0]
    assert answer(capsys, *RUN, nearest)["plan"]["days"] <= float(nearest.split("=")[1])
    small = [*RUN[:2], "--hardware=rtx4090"]
    line = refusal(capsys, *small, "--devices=1")
    nearest = line.split("nearest: ")[1].split()[0]
    assert answer(capsys, *small, nearest)["plan"]["memory_bytes"]["fits"]


@pytest.mark.full
def test_devices_that_wait_for_a_small_batch_are_not_picked_unless_days_are_asked(capsys):
    """405B on a batch of 2,048 sequences: beyond 8,192 H100 the device-hours grow with the devices."""
    result = answer(capsys, "--params=405e9", "--tokens=15.6e12", "--hardware=h100")
    hours = {each["devices"]: each["device_hours"] for each in result["counts"]}
    pick = result["plan"]["devices"]
    assert hours[pick] < 1.3 * hours[pick // 2] and hours[2 * pick] > 1.3 * hours[pick]
    assert result["plan"]["days"] > 30 and any("more devices would take" in note for note in result["notes"])
    asked = answer(capsys, "--params=405e9", "--tokens=15.6e12", "--hardware=h100", "--days=110")
    assert asked["plan"]["days"] <= 110 and asked["plan"]["devices"] > pick
