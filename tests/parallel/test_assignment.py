"""Which layers the stages of a pipeline hold: every layer once, in the model's order, the ends with one layer less."""

import numpy as np
import pytest
from jax.sharding import PartitionSpec

from scalelab.config import Layout
from scalelab.parallel.stages.assignment import (
    EMPTY,
    assign_layers,
    chunk_loads,
    fewest_layers,
    is_even,
    slots_of_layers,
    stack_slots,
)
from scalelab.plan.step.device_share import stage_layers
from scalelab.train.step.state import state_shapes, state_specs
from tests.plan.small import static_of

SIZES = [(p, v, n) for p in (2, 3, 4, 16) for v in (1, 2, 3) for n in range(fewest_layers(p, v), 3 * p * v + 2)]


def in_model_order(slots):
    """(stack, index) of each layer, along the chunks as a micro-batch passes them: round by round, stage by stage."""
    pairs = zip(slots.stack.swapaxes(0, 1).ravel(), slots.layer.swapaxes(0, 1).ravel(), strict=True)
    return [(int(stack), int(index)) for stack, index in pairs if index != EMPTY]


def test_each_layer_is_held_once_and_passed_in_the_models_order():
    for stages, rounds, layers in SIZES:
        slots = assign_layers((layers,), stages, rounds)
        assert slots.layer.shape == (stages, rounds, -(-layers // (stages * rounds)))
        assert in_model_order(slots) == [(0, i) for i in range(layers)]
        assert list(slots.held()[slots.slot_of_layer()]) == list(range(layers))
        assert ((slots.layer == EMPTY) == (slots.stack == EMPTY)).all()


def test_loads_differ_by_one_layer_at_most_and_the_ends_have_fewer():
    for stages, rounds, layers in SIZES:
        loads = chunk_loads(layers, stages * rounds)
        assert sum(loads) == layers and max(loads) - min(loads) <= 1
        assert is_even(layers, stages, rounds) == (max(loads) == min(loads))
        full = np.flatnonzero(loads == max(loads))
        assert (
            np.diff(full) == 1
        ).all()  # those with one less are at the ends, and as many at either, or one more last
        assert 0 <= len(loads) - 1 - full[-1] - full[0] <= 1
        assert assign_layers((layers,), stages, rounds).layers_by_stage.min() > 0


def test_even_stages_hold_what_they_always_held():
    assert assign_layers((8,), 2, 2).layer.tolist() == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_llama_3():
    """Dubey et al. 2024, section 3.3.2: 126 layers over 16 stages, one less on the first and the last; in rounds of
    one layer the first chunk is the embedding alone and the last one the head."""
    assert assign_layers((126,), 16, 1).layers_by_stage.tolist() == [7, *[8] * 14, 7]
    by_round = assign_layers((126,), 16, 8)
    assert by_round.depth == 1 and by_round.layers_by_stage.tolist() == [7, *[8] * 14, 7]
    assert by_round.layer[0, 0, 0] == by_round.layer[15, 7, 0] == EMPTY
    assert stage_layers(126, 16, 8) == (8, 7)


@pytest.mark.parametrize(("stages", "rounds"), [(2, 1), (4, 1), (2, 2)])
def test_a_trunk_of_several_stacks_is_cut_where_one_stack_would_be(stages, rounds):
    depths = (3, 10)
    one, two = assign_layers((13,), stages, rounds), assign_layers(depths, stages, rounds)
    assert in_model_order(two) == [(0, i) for i in range(3)] + [(1, i) for i in range(10)]
    assert (two.layers_by_stage == one.layers_by_stage).all()
    for stack, depth in enumerate(depths):
        assert list(two.held(stack)[two.slot_of_layer(stack)]) == list(range(depth))


def test_the_planner_counts_the_layers_that_the_stages_hold():
    for stages, rounds, layers in SIZES:
        slots = assign_layers((layers,), stages, rounds)
        fullest, last = stage_layers(layers, stages, rounds)
        assert fullest == rounds * slots.depth >= slots.layers_by_stage.max()
        assert last == slots.layers_by_stage[-1]


def test_empty_slots_are_no_layers_of_the_state():
    """What is saved, exported and counted has the model's layers, whatever the stages hold."""
    static = static_of(Layout(stage=4, microbatches=2), model={"n_layers": 6})
    like, specs = state_shapes(static).params["blocks"], state_specs(static).params["blocks"]
    assert like["mlp"]["up"]["w"].shape[0] == 6
    assert specs["mlp"]["up"]["w"] == PartitionSpec(None, ("fsdp", "stage"), "tensor")


@pytest.mark.parametrize(
    ("depths", "stages", "rounds"), [((3, 10), 4, 1), ((1, 61), 16, 1), ((2, 1, 5), 2, 2), ((7,), 3, 2)]
)
def test_stacks_have_slots_of_their_own_that_hold_each_layer_once_in_the_models_order(depths, stages, rounds):
    slots, tables = assign_layers(depths, stages, rounds), stack_slots(depths, stages, rounds)
    for number, (depth, table) in enumerate(zip(depths, tables, strict=True)):
        assert sorted(table[table != EMPTY]) == list(range(depth))
        assert table.shape[2] == (slots.stack == number).sum(axis=2).max()  # no more than the fullest chunk needs
    for place in np.ndindex(stages, rounds):  # a chunk runs its stacks one after the other
        run = [(number, i) for number, table in enumerate(tables) for i in table[place] if i != EMPTY]
        held = slots.layer[place] != EMPTY
        assert run == list(zip(slots.stack[place][held], slots.layer[place][held], strict=True))
    flat = np.concatenate(
        [table + first for table, first in zip(tables, np.cumsum([0, *depths[:-1]]), strict=True)], axis=2
    )
    assert flat.ravel()[slots_of_layers(depths, stages, rounds)].tolist() == list(range(sum(depths)))
    if len(depths) == 1:
        np.testing.assert_array_equal(tables[0], slots.layer)
