"""The record of a run's formats is read off its step: each policy's statement against what is found there."""

import functools

import jax
import jax.numpy as jnp
import pytest

from scalelab.config import flatten_hparams
from scalelab.precision import policy as policy_lib
from scalelab.precision.formats_in_jaxpr import collect_formats
from scalelab.precision.policy import POLICIES
from scalelab.train.activations import collect_activations
from scalelab.train.formats_found import step_formats
from scalelab.train.step import state as state_lib
from scalelab.train.step import step as step_lib
from scalelab.train.step.program import hparam_shapes
from tests.quick import one_in, others_slow
from tests.train.step.test_step import setting


@functools.cache
def found(name, **changes):
    static, h = setting(**{"precision.name": name} | {key.replace("__", "."): v for key, v in changes.items()})
    return step_formats(static, h)


LIKE_OTHERS = {"fp16_unscaled", "bf16_moments"}  # fp16 without its state, bf16 with narrow moments


@pytest.mark.parametrize("name", others_slow(lambda name: name not in LIKE_OTHERS, one_in(3, list(POLICIES))))
def test_what_a_policy_states_is_what_is_found(name):
    policy, dtypes = POLICIES[name], found(name)
    for role in ("parameters", "accumulation", "gradients", "reductions", "moments", "logits", "loss"):
        assert dtypes[role] == [getattr(policy, role)], role
    assert list(policy.products) == sorted(dtypes["compute"])
    assert sum(dtypes["compute"].values()) == pytest.approx(1, abs=1e-3)
    hidden = " x ".join(sorted({policy.forward, policy.backward}))
    share = sum(v for form, v in dtypes["compute"].items() if form in (policy.forward, hidden))
    assert share > 0.7  # the layers' products; the rest is attention's and the head's


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [pytest.param({}, marks=pytest.mark.slow), {"model.norm_place": "after"}, {"model.block": "parallel"}],
    ids=str,
)
def test_the_residual_stream_is_added_up_in_the_stated_format(changes):
    """fp32 under every fp8 policy, though layers take and give bf16; narrow where the whole policy is narrow."""
    assert {name for name, policy in POLICIES.items() if policy.residual != policy.compute} == {
        "tf32", "fp8", "fp8_delayed", "fp8_block",
    }  # fmt: skip
    static, _ = setting(**changes)
    shape, params = static.model, state_lib.state_shapes(static).params
    tokens = jax.ShapeDtypeStruct((2, shape.seq_len), jnp.int32)
    for name, policy in POLICIES.items():
        assert policy.residual == ("float32" if "fp8" in name else str(policy_lib.array_dtype(policy.compute)))
        seen = jax.eval_shape(functools.partial(collect_activations, shape, policy=policy), params, tokens)
        assert {str(seen[x].dtype) for x in ("embedding", "stream")} == {policy.residual}, name
        assert str(seen["final_norm"].dtype) == str(policy_lib.array_dtype(policy.compute)), name


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    others_slow(
        lambda changes: {*changes} in ({"train__accumulate"}, {"model__remat"}),  # a loop more, a block computed again
        [
            {"model__n_layers": 13},
            {"train__accumulate": 2},
            {"model__remat": "full"},
            {"model__position": "relative"},
            {"model__tied_head": True, "model__bias": True},
        ],
    ),
    ids=str,
)
def test_formats_are_found_inside_loops_and_blocks_computed_again(changes):
    dtypes = found("fp8", **changes)
    assert dtypes["compute"].keys() == found("fp8")["compute"].keys()
    assert {role: v for role, v in dtypes.items() if role != "compute"} == {
        role: v for role, v in found("fp8").items() if role != "compute"
    }


def test_an_alias_cannot_pass(monkeypatch):
    """A policy named fp8 that multiplies in bf16, one with narrow sums, one that rounds gradients: each is seen."""
    monkeypatch.setitem(POLICIES, "fp8", policy_lib._half("fp8", "bfloat16"))
    static, h = setting(**{"precision.name": "fp8", "train.global_batch": 4})  # no cached trace
    assert "float8" not in str(step_formats(static, h)["compute"])
    gradients = step_lib.scaled_gradients

    def rounded(*args):
        sums, grads, amax = gradients(*args)
        return sums, jax.tree.map(lambda g: g.astype(jnp.bfloat16), grads), amax

    monkeypatch.setattr(step_lib, "scaled_gradients", rounded)
    static, h = setting(**{"precision.name": "bf16", "train.global_batch": 2})
    assert step_formats(static, h)["gradients"] == ["bfloat16"]


def test_the_step_is_compiled_from_the_trace_that_its_formats_were_read_from(monkeypatch):
    static, h = setting(**{"model.d_model": 24, "model.d_head": 6, "train.global_batch": 2})  # no other test's
    traced, original = [], step_lib.train_step
    monkeypatch.setattr(step_lib, "train_step", lambda *given: (traced.append(given), original(*given))[1])
    step_formats(static, h)
    state = state_lib.state_shapes(static)
    batches = jax.ShapeDtypeStruct((3, 2, static.model.seq_len + 1), jnp.int32)
    jax.eval_shape(functools.partial(step_lib.many_steps, static), state, batches, 1, hparam_shapes(flatten_hparams(h)))
    assert len(traced) == 1
    step_lib.jit_train_step.cache_clear()  # holds the counting step


def test_the_walk_sees_operands_sums_and_rounding_through_what_moves_them():
    def program(a, b):
        low = jax.lax.reduce_precision(a, 8, 10).reshape(4, 2).T  # moved, not changed
        y, _ = jax.lax.scan(lambda c, _: (c + jnp.dot(low, b.T), None), jnp.zeros((2, 3)), length=5)
        z = jnp.dot(a.astype(jnp.bfloat16), a.astype(jnp.bfloat16).T)
        return jnp.sum(y) + jnp.sum(z, dtype=jnp.bfloat16).astype(jnp.float32)

    seen, _ = collect_formats(jax.make_jaxpr(program)(jnp.ones((2, 4)), jnp.ones((3, 4))).jaxpr)
    assert seen.flops == {"float32 x tensorfloat32": 5 * 2 * 2 * 4 * 3, "bfloat16": 2 * 2 * 4 * 2}
    assert seen.products == {"float32", "bfloat16"}
    assert seen.sums == {"float32", "bfloat16"}
