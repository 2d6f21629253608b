"""A model with experts through the commands: what contradicts itself, and what is not known of it, is refused."""

import re

import pytest

from scalelab.__main__ import main
from tests.commands.test_stacks import refusal
from tests.train.runs import SMALL

PLAN = [
    "plan", "--config=configs/tiny.py", "--config.model.block=experts", "--config.model.n_experts=8",
    "--config.model.d_expert=64", "--hardware=h100", "--devices=8",
]  # fmt: skip
MODEL = [*SMALL, "--config.model.block=experts", "--config.model.n_experts=4"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("experts_per_token=5", "experts_per_token=5 is more than model.n_experts=4; nearest: 4"),
        ("router_groups=3", "router_groups=3 does not divide model.n_experts=4; nearest: 2"),
        ("router_groups=2 router_groups_per_token=3", "per_token=3 is more than model.router_groups=2; nearest: 2"),
        ("router_groups=4 experts_per_token=2", "=2 is more than the 1 experts in .*_per_token=1 groups; nearest: 2"),
        ("expert_capacity=0.5", "expert_capacity=0.5 is below 1, .*; nearest: 1"),
        ("expert_capacity=-1", "expert_capacity=-1.0 is outside"),
        ("experts_per_token=1", "per_token=1 of model.n_experts=4: every weight would be 1, .*nearest: False"),
        ("n_experts=0", "block='experts' with model.n_experts=0: a block has experts; nearest: n_experts=8"),
        ("block=sequential", "n_experts=4 with model.block='sequential', .*nearest: model.block=experts, or n_exp"),
        ("bias=true", "bias=True with model.n_experts=4: experts have no biases; nearest: False"),
        ("router_scores=softmin", "'softmin' is not a choice; did you mean 'softmax'"),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_line_and_nothing_is_written(tmp_path, changes, message):
    folder, given = tmp_path / "run", [f"--config.model.{change}" for change in changes.split()]
    line = refusal("train", "--config=configs/tiny.py", f"--workdir={folder}", *MODEL, *given)
    assert re.search(message, line) and not folder.exists()


@pytest.mark.full
def test_a_plan_says_active_parameters_rows_and_what_is_sent(capsys):
    assert main([*PLAN[:-1], "--devices=2", "--mesh=expert=2"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"parameters \([\d.e+]+ active\) on 2 x H100 SXM", text)
    assert "MFU" in text and "of the active parameters' FLOPs" in text
    assert re.search(r"experts: products multiply [\d.]+ times the useful rows", text)
    assert re.search(r"experts: all-to-all of [\d,.e-]+ GB a device and step, of them 0 GB over the network", text)


@pytest.mark.full
@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("expert=3,data=1", "is a mesh of 3, and there are 8 devices"),
        ("expert=4,data=2,expert_buffer=0.5", "expert_buffer=0.5 with parallel.expert=4: .*nearest: 1"),
        pytest.param(
            "data=8,expert_buffer=1.5",
            "expert_buffer=1.5 with parallel.expert=1: no rows are sent; nearest: 0",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_plan_says_what_the_trainer_refuses_of_a_mesh(capsys, mesh, message):
    main([*PLAN, f"--mesh={mesh}"])
    output = capsys.readouterr()
    assert re.search(message, (output.out + output.err).splitlines()[0])


@pytest.mark.full
def test_experts_that_do_not_divide_by_the_axis_are_refused_with_both_numbers(capsys):
    assert main([*PLAN, "--config.model.n_experts=6", "--mesh=expert=4,data=2"]) == 0
    assert re.search(r"refused: model.n_experts=6 .* parallel.expert=4", capsys.readouterr().out.splitlines()[0])
