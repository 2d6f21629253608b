"""How a stage's arrays are handed to it: lowered for a mesh that isn't here, nothing is compiled."""

import re

import jax

from scalelab.config import Layout
from scalelab.model.transformer import parameter_declarations
from tests.plan.small import pipelined, static_of


def test_a_stage_gathers_nothing_where_its_arrays_are_handed_in_and_out():
    """Dimensions left open ("?") keep the splits of fsdp and tensor; a closed one that names no axis is gathered
    whole."""
    static = static_of(Layout(stage=2, fsdp=4, tensor=2, microbatches=2), model={"n_layers": 2}, batch=16)
    text = pipelined(static).lower(lowering_platforms=("cpu",)).as_text()
    borders = [line for line in text.splitlines() if 'manual_axes={"stage"}' in line]
    assert len(borders) == 1
    shardings = re.findall(r"<@mesh, \[([^]]*)\]", borders[0])
    assert len(shardings) > 2 * len(jax.tree.leaves(parameter_declarations(static.model)))
    assert '{"stage", ?}, {?}, {?}' in shardings
    assert not any("{}" in dimensions for dimensions in shardings)
