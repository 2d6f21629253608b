"""Plans of unequal layers: one stack cut into several is the same work, a mixed one lies between, stages hold slots."""

import dataclasses

import pytest

from scalelab.config import Layout
from scalelab.parallel.stages.slots import layer_tables
from scalelab.plan.machine.machine import load_machine
from scalelab.plan.memory import estimated_activations, held, memory
from scalelab.plan.step.time import step_time
from scalelab.plan.step.traffic import step_transfers
from tests.plan.small import static_of

H100 = load_machine("h100")


def of_block(block, layout, layers=4):
    static = static_of(layout, model={"n_layers": layers, "window": 16, "global_every": 3})
    return dataclasses.replace(static, model=dataclasses.replace(static.model, block=block))


@pytest.mark.full
@pytest.mark.parametrize("layout", [Layout(), Layout(data=2, fsdp=2, tensor=2, sequence=True)], ids=str)
def test_a_plan_of_stacks_is_that_of_their_layers(layout):
    blocks = "sequential", "sequential=1,sequential=3", "parallel=1,sequential=3", "parallel"
    one, cut, mixed, other = (of_block(block, layout) for block in blocks)
    times = [step_time(static, H100).total_s for static in (one, cut, mixed, other)]
    assert times[1] == pytest.approx(times[0], rel=1e-12)
    assert times[2] == pytest.approx((3 * times[0] + times[3]) / 4, rel=1e-3)  # but for what one hides of the other
    estimates = [
        estimated_activations.estimate_saved_activations(static).row_bytes for static in (one, cut, mixed, other)
    ]
    assert estimates[1] == estimates[0] and estimates[2] == pytest.approx((3 * estimates[0] + estimates[3]) / 4, abs=4)
    sizes = [memory.step_memory(static, H100).components for static in (one, cut)]
    for name in ("parameters", "optimizer", "gradients", "temporary"):
        assert sizes[0][name] == sizes[1][name]


def test_a_stage_has_slots_for_the_layers_of_each_stack():
    """Two stages of three layers, of a kind each: both hold slots for either's, and a step sends what fills them."""
    layout = Layout(stage=2, microbatches=2)
    even, halves = (of_block(block, layout, 6) for block in ("sequential", "sequential=3,sequential=3"))
    assert [table.shape for table in layer_tables(halves.model, halves.layout)] == [(2, 1, 3), (2, 1, 3)]
    plain, slotted = (memory.step_memory(static, H100).components for static in (even, halves))
    block = held.parameter_bytes(even, memory.rules.stage_specs, blocks=True)
    assert "copies" not in plain and slotted["copies"] == 2 * block
    assert slotted["gradients"] - plain["gradients"] == block and slotted["activations"] > plain["activations"]
    (sent,) = (transfer for transfer in step_transfers(halves) if transfer.kind == "all-to-all")
    assert sent.axis == "stage" and sent.whole_bytes == 2 * block and sent.times == 2
