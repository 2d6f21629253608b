"""What policies keep between steps: one class each, asked the same way by the step."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.model.declare import Declaration
from scalelab.precision.policy import POLICIES
from scalelab.precision.states import policy_state
from tests.train.runs import ROOT

PARAMS = {"blocks": {"up": {"w": jnp.full((1, 2, 3), 1.0 + 2.0**-12)}}}
BLOCKS = {"up": {"w": Declaration((1, 2, 3), ("embed",), ("mlp",), stack=("layers",))}}
AMAX = {"up": {"s": jnp.ones((1, 3))}}
TRUE, FALSE = jnp.bool_(True), jnp.bool_(False)


def after(policy, finite, accepted):
    """(state before, state after) a step whose update keeps what rounding lost."""
    keeping = policy_state(POLICIES[policy])
    state = keeping.init(PARAMS, BLOCKS)
    kept = keeping.store_params(PARAMS)[1] if accepted else keeping.kept_by_update(state)
    return state, keeping.next(state, kept, AMAX, finite, accepted)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_stored_is_read_again(policy):
    keeping = policy_state(POLICIES[policy])
    stored, kept = keeping.store_params(PARAMS)
    assert {x.dtype.name for x in jax.tree.leaves(stored)} == {POLICIES[policy].parameters}
    read = np.asarray(keeping.read_params(stored, kept)["blocks"]["up"]["w"])
    exact = POLICIES[policy].parameters == "float32" or policy == "bf16_kahan"
    assert read.dtype == np.float32 and (read == 1 + 2.0**-12).all() == exact
    assert jax.tree.structure(keeping.init(PARAMS, BLOCKS)) == jax.tree.structure(after(policy, TRUE, TRUE)[1])


def test_each_state_moves_on_by_its_own_rule():
    scaled = [after("fp16", *pair)[1] for pair in ((TRUE, TRUE), (TRUE, FALSE), (FALSE, FALSE))]
    assert [(float(s.scale), int(s.good)) for s in scaled] == [(65536, 1), (65536, 0), (32768, 0)]
    for accepted in (TRUE, FALSE):  # a step that is skipped leaves no trace
        old, new = after("fp8_delayed", TRUE, accepted)
        assert new["up"]["s"].sum() - old["up"]["s"].sum() == 3 * accepted
    assert set(policy_state(POLICIES["fp16"]).metrics(scaled[0])) == {"loss_scale"}
    assert policy_state(POLICIES["bf16"]).metrics(()) == {}


def test_the_step_asks_no_policy_which_one_it_is():
    asks = re.compile(r"scaled_loss|\"delayed\"|\"kahan\"")
    files = [ROOT / "scalelab/train/step" / name for name in ("step.py", "state.py", "guard.py", "update/update.py")]
    assert not [f.name for f in map(pathlib.Path, files) if asks.search(f.read_text())]
