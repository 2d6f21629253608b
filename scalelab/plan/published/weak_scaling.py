"""Megatron-LM's weak scaling (Shoeybi et al. 2019, section 5.1 and figure 5), as the planner has it."""

import dataclasses
import functools
import math

from scalelab import config as config_lib
from scalelab.config import Static
from scalelab.laws.published.verdict import (
    ComparisonRow,
    Interval,
    PaperReport,
    judge_consistency,
    judge_forecast,
    make_comparison_row,
)
from scalelab.model import count
from scalelab.plan.machine.machine import Machine, load_machine
from scalelab.plan.step.efficiency import Efficiency, default_efficiency
from scalelab.plan.step.systems import EAGER_TRAITS
from scalelab.plan.step.time import expected_s, step_time

SOURCE = "Shoeybi et al. 2019 (arXiv 1909.08053), section 5.1, figure 5 and table 1"
# table 1: layers, d_model, heads and GPUs of model parallelism; figure 5 has 64 times as many with data parallelism
SHAPES = {1: (40, 1536, 16), 8: (72, 3072, 32)}
SEQUENCES, LENGTH, VOCABULARY, COPIES = 8, 1024, 51_200, 64
A_SERVER, BETWEEN = 16, 100e9  # section 5.1: GPUs of a DGX-2H, bytes/s between servers
RECIPE = (
    "plan/step/time.py as for an eager PyTorch, V100s of 125 TFLOP/s, 16 a server with 100 GB/s between servers, 8 "
    "sequences a copy, everything recomputed; interval: ends of what links and overlap reach"
)


@functools.cache
def _machine() -> Machine:
    return dataclasses.replace(load_machine("v100"), devices_per_node=A_SERVER, node_bytes_per_s=BETWEEN / A_SERVER)


def _static(gpus: int, copies: int) -> Static:
    from scalelab.configs import base  # the tree is configuration, not part of the library

    layers, width, heads = SHAPES[gpus]
    tree = base.get_config()
    tree.model = base.gpt2(width, layers, heads)
    values = {"model.vocab_size": VOCABULARY, "model.seq_len": LENGTH, "model.remat": "full", "optim.peak_lr": 1e-4,
              "precision.name": "fp16", "parallel.tensor": gpus, "parallel.data": copies,
              "train.global_batch": SEQUENCES * copies}  # fmt: skip
    return config_lib.static(config_lib.resolve(config_lib.override(tree, values)))


def rate(gpus: int, copies: int, efficiency: Efficiency) -> float:
    """TFLOP/s of model FLOPs a GPU."""
    static = _static(gpus, copies)
    return _tokens_flops(static) / expected_s(static, _machine(), efficiency, EAGER_TRAITS) / 1e12


def _tokens_flops(static: Static) -> float:
    """FLOPs a GPU and step."""
    tokens = static.global_batch * static.model.seq_len
    return count.flops_per_token(static.model)["exact"] * tokens / static.layout.devices


def scaling(copies: int) -> tuple[float, Interval]:
    """Rate a GPU of the largest model over that of one GPU, and its ends by the shares of links, added as errors."""
    efficiency = default_efficiency(_machine())
    one = rate(1, 1, efficiency)
    expected = rate(8, copies, efficiency) / one
    ends = []
    for end in ("low", "high"):
        moved = []
        for field in ("network", "overlap"):
            share = getattr(getattr(efficiency, field), end)
            range_ = dataclasses.replace(getattr(efficiency, field), expected=share)
            moved.append(rate(8, copies, dataclasses.replace(efficiency, **{field: range_})) / one - expected)
        ends.append(math.sqrt(sum(each**2 for each in moved)))
    return expected, (expected - ends[0], expected + ends[1])


def reproduce() -> PaperReport:
    """The rows: what the plan says beside what was measured, and the paper's figures beside each other."""
    one = step_time(_static(1, 1), _machine(), traits=EAGER_TRAITS)
    flops = _tokens_flops(_static(1, 1)) / 1e12
    (model, model_ends), (both, both_ends) = scaling(1), scaling(COPIES)
    figure = 15.1e15 / (512 * 39e12)
    rows: tuple[ComparisonRow, ...] = (
        make_comparison_row("1.2B on one V100, TFLOP/s", flops / one.total_s, "39", RECIPE, judge_forecast,
                            interval=(flops / one.high_s, flops / one.low_s)),
        make_comparison_row("8.3B on 8 GPUs: share of linear scaling", model, "0.77", RECIPE, judge_forecast,
                            interval=model_ends),
        make_comparison_row("8.3B on 512 GPUs: share of linear scaling", both, "0.74", RECIPE, judge_forecast,
                            interval=both_ends),
        make_comparison_row("15.1 PFLOP/s over 512 times 39 TFLOP/s (abstract: 76 %)", figure, "0.76",
                            "the abstract's own figures", judge_consistency),
        make_comparison_row("the same, by section 5.1", figure, "0.74", "the abstract's and section 5.1's figures",
                            judge_consistency),
    )  # fmt: skip
    finding = (
        f"512 GPUs: 76 % in the abstract, 74 % in section 5.1; 15.1 PFLOP/s over 512 times 39 TFLOP/s are {figure:.1%}."
    )
    return PaperReport("weak_scaling", SOURCE, rows, (finding,))
