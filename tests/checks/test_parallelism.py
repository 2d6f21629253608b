"""When a table of layouts passes: rounding in bf16 is judged by its distance from fp32."""

import functools

import jax
import pytest

from checks.numerics.parallelism.__main__ import is_within_tolerance
from checks.numerics.parallelism.experts import merge_rows
from checks.numerics.parallelism.layouts import expert_variants
from scalelab.config import Layout
from scalelab.experiments.studies.fsdp import rows as layout_rows


@pytest.mark.parametrize(
    ("row", "passes"),
    [
        ({"grad_rel_diff": 0.9e-2}, True),
        ({"grad_rel_diff": 1.2e-2}, False),
        ({"grad_rel_diff": 1.2e-2, "distance_from_fp32": 1.2}, True),
        ({"grad_rel_diff": 1.2e-2, "distance_from_fp32": 1.6}, False),
        ({"grad_rel_diff": 0.9e-2, "sums_in_bf16": 1.6}, False),
        ({"grad_rel_diff": 0.9e-2, "loss_rel_diff": 1.1e-2}, False),
    ],
)
def test_a_layout_in_bf16_is_near_one_device_or_as_near_to_fp32(row, passes):
    exact = {"loss_rel_diff": 1e-7, "grad_rel_diff": 1e-6, "sums_rel_diff": 0.0}
    assert is_within_tolerance({"rows": [exact], "rows_bf16": [{"loss_rel_diff": 1e-6} | row]}) is passes


def test_a_layout_in_fp32_that_is_not_one_devices_fails():
    row = {"loss_rel_diff": 1e-7, "grad_rel_diff": 4e-6, "sums_rel_diff": 0.0}
    assert not is_within_tolerance({"rows": [row], "rows_bf16": []})


def test_sums_of_blocks_that_are_not_one_devices_fail():
    row = {"loss_rel_diff": 1e-7, "grad_rel_diff": 1e-6, "sums_rel_diff": 3e-6}
    assert not is_within_tolerance({"rows": [row], "rows_bf16": []})


def test_new_rows_of_experts_take_the_place_of_theirs_and_the_others_stay():
    before = [{"layout": "expert", "skewed": skewed, "date": "old"} for skewed in (False, True)]
    gone = {"layout": "a layout that is not there any more", "skewed": True, "date": "old"}
    rows = [{"layout": name, "skewed": True, "date": "new"} for name in ("expert+data", "expert")]
    merged = merge_rows(rows, [*before, gone])
    assert [(row["layout"], row["skewed"], row["date"]) for row in merged] == [
        ("expert", False, "old"), ("expert", True, "new"), ("expert+data", True, "new"),
    ]  # fmt: skip


def test_skewed_experts_keep_the_shapes_of_the_drawn_ones():
    """Traced alone, with no axis promoted in silence; the rows themselves are compared by slow tests."""
    for variant in expert_variants():
        static, h = layout_rows.build_static(variant, Layout(), "fp32")
        traced = [
            jax.eval_shape(functools.partial(layout_rows.draw_weights, static, skewed=s), h) for s in (True, False)
        ]
        assert jax.tree.map(lambda x: x.shape, traced[0]) == jax.tree.map(lambda x: x.shape, traced[1])
