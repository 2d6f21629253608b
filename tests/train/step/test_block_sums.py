"""Sums that blocks give beside the residual stream: in the objective, in every way to take a step, and in the log."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from checks.numerics.parallelism import side_loss
from scalelab.model import transformer
from scalelab.model.attention.documents import SplitTokens
from scalelab.model.pieces import end_in_loss
from scalelab.model.stacks import UNIFORM_LAYERS
from scalelab.model.sums.block_sums import COUNTS, LOSSES, MAXIMA, SUMS
from scalelab.precision.policy import FP32
from scalelab.testing import check_block
from scalelab.train.step.gradients import compute_gradients
from scalelab.train.step.metrics import LAYERS
from scalelab.train.step.update.per_layer.backward import measure_gradient
from tests.train.step.test_step import batches, init, relative, setting, step

ROUTED = {"model.block": side_loss.NAME, "model.n_layers": 2}
gradients = jax.jit(compute_gradients, static_argnums=0)


@functools.cache
def whole():
    """(static, parameters, tokens with positions that don't count, sums, gradients) of the whole batch at once."""
    static, h = setting(**ROUTED)
    tokens = np.array(batches()[0])
    tokens[0], tokens[1, 5:], tokens[7, 2:9] = -1, -1, -1  # a whole micro-batch of 8 with nothing left
    params = init(static, h).params
    return static, params, tokens, *gradients(static, params, tokens, jnp.float32(0.1))


@pytest.mark.full
def test_a_block_declares_its_sums_and_the_built_in_ones_have_none():
    static, *_ = whole()
    shapes = {
        kind: {name: x.shape for name, x in each.items()} for kind, each in transformer.block_sums(static.model).items()
    }
    assert shapes == {LOSSES: {"router_z": (2,)}, COUNTS: {"choices": (2, 8)}, MAXIMA: {"router_max": (2,)}}
    plain, h = setting()
    assert transformer.block_sums(plain.model) == {}
    assert gradients(plain, init(plain, h).params, batches()[0], jnp.float32(0))[0].block is None


@pytest.mark.full
def test_losses_of_blocks_are_in_the_objective_over_tokens_that_count():
    """Block by block, with the cross-entropy of the logits."""
    static, params, tokens, sums, grads = whole()
    of, targets = static.model, jnp.asarray(tokens[:, 1:])
    split = SplitTokens(jnp.maximum(tokens[:, :-1], 0), targets)

    def by_hand(params):
        pieces = transformer.make_pieces(of, FP32, split, end_in_loss(of, split, 0.1))
        x_BSD, side, choices = pieces.enter(params), 0.0, []
        for layer in range(of.n_layers):
            weights = jax.tree.map(lambda w: w[layer], params["blocks"])  # noqa: B023
            x_BSD, written = pieces.block({"params": weights}, x_BSD, UNIFORM_LAYERS)
            side += written[SUMS][LOSSES]["router_z"]
            choices.append(written[SUMS][COUNTS]["choices"])
        return (pieces.leave(params, x_BSD).objective + side) / jnp.sum(targets >= 0), (side, choices)

    (objective, (side, choices)), expected = jax.jit(jax.value_and_grad(by_hand, has_aux=True))(params)
    assert (
        relative(grads, expected) < 2e-6 and float(jnp.abs(grads["blocks"]["router"]["w"]).min(axis=(1, 2)).max()) > 0
    )
    np.testing.assert_allclose(sums.objective / sums.tokens, objective, rtol=1e-6)
    np.testing.assert_allclose(sums.block[LOSSES]["router_z"].sum(), side, rtol=1e-6)
    np.testing.assert_array_equal(sums.block[COUNTS]["choices"], choices)
    assert (sums.block[COUNTS]["choices"].sum(axis=1) == (tokens[:, 1:] >= 0).sum()).all()


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [{"accumulate": 2, "remat": "full"}, pytest.param({"accumulate": 8}, marks=pytest.mark.slow)],
    ids=str,
)
def test_they_are_the_same_in_micro_batches(changes):
    static, params, tokens, sums, grads = whole()
    split = dataclasses.replace(static, accumulate=changes["accumulate"])
    split = dataclasses.replace(split, model=dataclasses.replace(split.model, remat=changes.get("remat", "none")))
    split_sums, split_grads = gradients(split, params, tokens, jnp.float32(0.1))
    assert relative(split_grads, grads) < 2e-6
    np.testing.assert_array_equal(split_sums.block[COUNTS]["choices"], sums.block[COUNTS]["choices"])
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-6), split_sums.block, sums.block)


@pytest.mark.full
def test_a_step_logs_them_summed_over_layers_and_by_layer():
    static, h = setting(**ROUTED, **{"log.layers_every": 1, "train.accumulate": 2})
    _, metrics = step(static, init(static, h), batches()[0], h)
    by_layer = {name: np.asarray(metrics[LAYERS][f"block_{name}"]) for name in ("router_z", "choices", "router_max")}
    assert all(values.shape == (2,) for values in by_layer.values())
    np.testing.assert_allclose(metrics["block/router_z"], by_layer["router_z"].sum(), rtol=1e-6)
    assert 1 <= by_layer["choices"].min() <= metrics["block/choices"] == by_layer["choices"].max() <= side_loss.CHOICES
    assert metrics["block/router_max"] == by_layer["router_max"].max()


@pytest.mark.full
def test_only_stacks_whose_blocks_have_a_loss_give_one():
    """A dense first layer, as models of experts have; by layer as in the ordinary step."""
    static, h = setting(
        **{"model.block": f"sequential=1,{side_loss.NAME}=2", "model.n_layers": 3, "model.remat": "full"}
    )
    assert transformer.block_sums(static.model)[COUNTS]["choices"].shape == (3, 8)
    params, tokens = init(static, h).params, batches()[0]
    sums, grads = gradients(static, params, tokens, jnp.float32(0))
    nats, counts = np.asarray(sums.block[LOSSES]["router_z"]), np.asarray(sums.block[COUNTS]["choices"])
    assert nats[0] == 0 < nats[1:].min() and not counts[0].any() and (counts[1:].sum(axis=1) == sums.tokens).all()
    assert sums.block[MAXIMA]["router_max"][0] == -np.inf
    np.testing.assert_allclose(sums.objective - sums.nll, nats.sum(), rtol=1e-5)
    assert jnp.abs(grads["blocks_1"]["router"]["w"]).max() > 0
    layered = dataclasses.replace(static, updates="per_layer")
    by_layer, kept = jax.jit(measure_gradient, static_argnums=0)(layered, params, tokens, jnp.float32(0), None)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), by_layer, sums)
    np.testing.assert_allclose(kept.norm, optax.tree.norm(grads), rtol=1e-5)


@pytest.mark.full
def test_alone_in_a_pack_and_past_later_tokens():
    values = check_block(side_loss.NAME).values
    assert values["block/router_z"] > 0 and 1 <= values["block/choices"] <= side_loss.CHOICES
