"""In how many parts a sequence is gathered: chosen by platform and size, and the same for the step and the planner."""

import dataclasses

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType

from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.model.products.parts import choose_parts, count_parts
from scalelab.parallel import rules
from scalelab.parallel.mesh import MESH_AXES
from scalelab.precision.policy import POLICIES
from scalelab.sharding import trace_for_platform


def static_of(**changes):
    values = {
        "model.n_heads": 8, "model.seq_len": 8192, "train.global_batch": 16, "train.accumulate": 2,
        "parallel.fsdp": 2, "parallel.tensor": 4, "parallel.sequence": True,
    } | {key.replace("__", "."): value for key, value in changes.items()}  # fmt: skip
    return config_lib.static(config_lib.resolve(config_lib.override(tiny.get_config(), values)))


@pytest.mark.parametrize(
    "asked, platform, tokens, stretch, parts",
    [
        (0, "gpu", 8192, 1024, 4),
        (0, "tpu", 4096, 1024, 4),
        (0, "gpu", 4095, 1024, 2),  # four would be products of fewer than 1,024 tokens
        (0, "gpu", 2047, 1024, 1),
        (0, "gpu", 8192, 1022, 2),  # four don't divide what a device holds between blocks
        (0, "gpu", 8192, 1021, 1),
        (0, "cpu", 8192, 1024, 1),
        (8, "cpu", 16, 8, 8),  # asked for
        (1, "gpu", 8192, 1024, 1),
        (4, "gpu", 8192, 1022, 1),  # a sequence of another length than the config's, which refuses this
    ],
)
def test_as_many_as_leave_products_large_enough(asked, platform, tokens, stretch, parts):
    assert choose_parts(asked, platform, tokens, stretch) == parts


@pytest.mark.parametrize(
    "changes, parts",
    [
        ({}, 4),
        ({"parallel__parts": 2}, 2),
        ({"parallel__sequence": False}, 1),
        ({"precision__name": "fp8"}, 1),
        ({"model__seq_len": 1024, "train__accumulate": 4}, 2),
        ({"parallel__fsdp": 1, "parallel__context": 2}, 4),
        ({"parallel__stage": 2, "parallel__fsdp": 1, "parallel__microbatches": 2}, 1),
    ],
)
def test_the_planner_counts_the_parts_that_the_step_has(changes, parts):
    static = static_of(**changes)
    layout, shape, policy = static.layout, static.model, POLICIES[static.precision]
    assert rules.parts_of_sequences(static, "gpu") == parts
    sizes = tuple(getattr(layout, axis) for axis in MESH_AXES)
    kinds = tuple(AxisType.Manual if axis == "stage" and layout.stage > 1 else AxisType.Explicit for axis in MESH_AXES)
    with jax.sharding.use_abstract_mesh(AbstractMesh(sizes, MESH_AXES, axis_types=kinds)), trace_for_platform("gpu"):
        rows, length = static.global_batch // static.accumulate, shape.seq_len
        assert count_parts(shape, policy, rows, length) == parts
        whole = dataclasses.replace(shape, sequence_parallel=False)
        assert count_parts(whole, policy, rows, length) == 1
