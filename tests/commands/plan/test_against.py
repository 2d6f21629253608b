"""`scalelab plan --against`: two plans side by side are the two plans, and what cannot run has no time."""

import json

import pytest

import scalelab.api
from scalelab.__main__ import main
from scalelab.errors import BadInput
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.step.efficiency import default_efficiency

TINY = ["--config=configs/tiny.py", "--hardware=h100", "--devices=2", "--price=2"]


def answer(capsys, *argv):
    assert main(["plan", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.full
def test_both_plans_are_those_of_plan_and_differ_in_what_was_asked(capsys):
    result = answer(capsys, *TINY, "--against=precision.name=bf16,model.n_layers=4")
    assert result["first"] == answer(capsys, *TINY)
    assert result["second"] == answer(capsys, *TINY, "--config.precision.name=bf16", "--config.model.n_layers=4")
    assert result["changes"] == {"precision.name": ["fp32", "bf16"], "model.n_layers": [2, 4]}
    figures = {each["name"]: each for each in result["figures"]}
    assert figures["step, s"]["second"] == result["second"]["time_s"]["total"]
    assert figures["cost"]["ratio"] == pytest.approx(result["second"]["cost"] / result["first"]["cost"])
    total = figures["weights and optimizer, GiB"]["first"] + figures["activations, GiB"]["first"]
    assert total + figures["the rest, GiB"]["first"] == pytest.approx(figures["total, GiB"]["first"])


@pytest.mark.full
def test_another_machine_and_from_python(capsys):
    assert main(["plan", *TINY, "--against=hardware=a100,devices=4,price=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("the second takes ") and "device-hours" in lines[0]
    assert lines[1] == "changed: hardware H100 SXM -> A100 80GB SXM, devices 2 -> 4"
    comparison = scalelab.api.plan_against("tiny", "hardware=a100,devices=4,price=1", "h100", 2, price_per_hour=2.0)
    assert comparison.second.training.cost == pytest.approx(comparison.second.training.device_hours)
    assert comparison.changes["devices"] == (2, 4)


@pytest.mark.full
def test_what_cannot_run_has_no_time(capsys):
    """gpt3_175b on one H100 does not fit; nothing of its time is printed."""
    assert main(["plan", *TINY[:2], "--devices=1", "--against=gpt3_175b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("the second cannot run: ") and "the first takes" in lines[0]
    (step,) = (line for line in lines if line.startswith("step, s"))
    assert step.split()[-2:] == ["-", "-"]


@pytest.mark.full
def test_in_place_of_what_does_not_fit_as_asked_its_nearest_is_compared(capsys):
    """llama3_2_1b on 8 H100 as it is takes 670 GiB a device."""
    argv = [*TINY[:2], "--devices=8", "--against=llama3_2_1b"]
    alone = answer(capsys, "--config=llama3_2_1b", *TINY[1:2], "--devices=8")
    figures = {each["name"]: each for each in answer(capsys, *argv)["figures"]}
    assert figures["days"]["second"] == alone["verdict"]["days"] > 0 and figures["free, GiB"]["second"] > 0
    assert main(["plan", *argv]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "the second as asked can't run" in lines[0] and lines[2].startswith("second plan: fsdp=8")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--against="], "changes nothing"),
        (["--against=precision.nam=bf16"], "did you mean 'precision.name'"),
        (["--against=tiny,small"], "two configs"),
        (["--against=devices=2.5"], "devices=2.5 is not a number above 0"),
        (["--against=hardware=h10"], "known: "),
        (["--against=model.n_layers=4", "--measure"], "--measure has no effect with --against"),
        (["--against=model.n_layers=4", "--critical-batch=1M"], "--critical-batch has no effect with --against"),
        (["--against=model.n_layers=4", "--why"], "--why has no effect with --against"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(capsys, argv, message):
    if argv == ["--against="]:
        argv = ["--against=,"]
    assert main(["plan", *TINY, *argv]) == 2
    line = capsys.readouterr().err
    assert message in line and len(line.strip().splitlines()) == 1


def test_what_was_measured_on_one_machine_is_not_taken_for_another():
    shares = default_efficiency(load_machine("h100"))
    with pytest.raises(BadInput, match="hardware=a100 with --calibrate: what was measured holds for one machine"):
        scalelab.api.plan_against("tiny", "hardware=a100", "h100", 2, efficiency=shares)


@pytest.mark.parametrize(
    ("against", "nearest"),
    [
        ("mi300x", "hardware=mi300x"), ("h100:2.5", "hardware=h100:2.5"), ("bf16", "precision.name=bf16"),
        ("64", "devices=64"),
    ],
)  # fmt: skip
def test_a_value_without_its_key_is_refused_with_the_key(against, nearest):
    with pytest.raises(BadInput, match=f"nearest: --against={nearest}$"):
        scalelab.api.plan_against("tiny", against, "h100", 2)


def test_several_kinds_for_a_config_are_put_side_by_side():
    with pytest.raises(BadInput, match=r"nearest: --hardware=h100:2 --against=hardware=a100:1\.5$"):
        scalelab.api.plan("tiny", "h100:2, a100:1.5")
