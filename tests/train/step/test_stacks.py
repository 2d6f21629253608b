"""Steps of a model of several stacks: those of the one stack from which they were cut, whatever is measured or kept."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checks.numerics.parallelism import side_loss
from scalelab.model.stacks import BLOCKS, by_stack, join_stacks
from scalelab.precision.exponent_histograms import values_by_layer
from scalelab.train.step import state as state_lib
from scalelab.train.step.metrics import LAYERS
from tests.train.step.test_step import batches, setting, step

SIZES = {"model.n_layers": 3, "model.window": 6, "model.global_every": 3, "model.nope_every": 2, "log.layers_every": 1}
start = jax.jit(state_lib.state_from_params, static_argnums=0)
close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [
        {"optim.name": "muon", "precision.name": "fp8_delayed"},
        pytest.param({"train.ema": 0.9, "train.accumulate": 2, "precision.name": "fp16"}, marks=pytest.mark.slow),
        pytest.param({"optim.name": "adafactor", "schedule.wd_shape": "cosine"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_steps_of_a_model_cut_into_stacks_are_those_of_the_whole(changes):
    one, h = setting(**SIZES, **changes)
    two, _ = setting(**SIZES, **changes, **{"model.block": "sequential=2,sequential=1"})
    params = jax.jit(state_lib.init_state, static_argnums=0)(one, h).params
    rest = {name: part for name, part in params.items() if name != BLOCKS}
    whole, cut = start(one, h, params), start(two, h, rest | by_stack(two.model, params[BLOCKS]))
    for tokens in batches(2):
        (whole, expected), (cut, log) = step(one, whole, tokens, h), step(two, cut, tokens, h)
        assert log[LAYERS]["grad_norm"].shape == (3,)
        assert jax.tree.structure(log) == jax.tree.structure(expected)
        jax.tree.map(close, log, expected)
    joined = {name: part for name, part in cut.params.items() if name in rest}
    jax.tree.map(close, joined | {BLOCKS: join_stacks(two.model, cut.params)}, whole.params)


@pytest.mark.full
def test_layers_are_numbered_and_measured_across_stacks():
    """A block that measures would mix up: layer 2 is the second stack's first, and so is its norm."""
    static, h = setting(**{"model.n_layers": 3, "model.block": "parallel=2,sequential=1", "log.layers_every": 1})
    state = jax.jit(state_lib.init_state, static_argnums=0)(static, h)
    louder = state.params | {"blocks_1": jax.tree.map(lambda w: 3 * w, state.params["blocks_1"])}
    layers = step(static, state._replace(params=louder), batches(1)[0], h)[1][LAYERS]
    assert (layers["weight_norm"] > 2 * layers["weight_norm"][0]).tolist() == [False, False, True]
    assert all(layers[name].shape == (3,) for name in ("eps_share", "residual_rms", "attention_entropy", "dead_units"))
    assert not any(name.startswith(BLOCKS) for name in layers)
    numbered = values_by_layer({f"blocks_{i}": {"w": jnp.full((1, 2), i)} for i in range(11)} | {"embed": jnp.ones(1)})
    assert list(numbered) == ["embed", *(f"block {i}" for i in range(11))]
    assert [values[0] for values in numbered.values()] == [1, *range(11)]


@pytest.mark.full
def test_a_sum_of_some_layers_is_logged_of_these():
    """A loss, an imbalance and a maximum of the second stack; the first has nothing in their place."""
    block = {"model.n_layers": 3, "model.block": f"sequential=1,{side_loss.NAME}=2"}
    static, h = setting(**block, **{"log.layers_every": 1})
    state = jax.jit(state_lib.init_state, static_argnums=0)(static, h)
    _, log = step(static, state, batches(1)[0], h)
    for name, over in (("router_z", np.sum), ("choices", np.max), ("router_max", np.max)):
        by_layer = log[LAYERS][f"block_{name}"]
        assert by_layer.shape == (3,) and by_layer[0] <= 0 and (by_layer[1:] > 0).all()
        np.testing.assert_allclose(log[f"block/{name}"], over(by_layer[1:]), rtol=1e-6)
