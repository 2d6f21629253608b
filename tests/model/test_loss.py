"""Chunked cross-entropy against a full log-softmax in float64: values, gradients, memory."""

import functools
import re

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.model.sums.cross_entropy import CPU_LOGITS, LossOptions, chunk_tokens, cross_entropy
from scalelab.model.sums.loss_sums import LossSums
from scalelab.sharding import trace_for_platform
from tests.quick import cross, one_in, others_slow
from tests.rounding import sum_error

T, D, V = 13, 6, 17
Z = 0.1


@functools.cache
def example(ignored=(3, 4, 12)):
    random = np.random.default_rng(0)
    x, head = random.normal(size=(T, D)), random.normal(size=(D, V))
    targets = random.integers(0, V, T)
    targets[list(ignored)] = -1
    return jnp.asarray(x, jnp.float32), jnp.asarray(head, jnp.float32), jnp.asarray(targets)


def by_hand(x, head, targets, z_weight, softcap):
    """(nll, z, count, d objective / d x, d objective / d head) in float64, with derivatives written out."""
    x, head, targets = np.asarray(x, np.float64), np.asarray(head, np.float64), np.asarray(targets)
    raw = x @ head
    logits = softcap * np.tanh(raw / softcap) if softcap else raw
    log_z = np.log(np.exp(logits).sum(-1))
    counted = targets >= 0
    nll = (log_z - logits[np.arange(len(x)), targets])[counted].sum()
    probabilities = np.exp(logits - log_z[:, None])
    slope = probabilities * (1 + 2 * z_weight * log_z[:, None]) - np.eye(head.shape[1])[targets]
    if softcap:
        slope = slope * (1 - np.tanh(raw / softcap) ** 2)
    slope[~counted] = 0
    return nll, np.square(log_z[counted]).sum(), counted.sum(), slope @ head.T, x.T @ slope


@functools.partial(jax.jit, static_argnums=(4, 5))
def value_and_grads(x, head, targets, z_weight, softcap, chunk):
    def objective(x, head):
        sums = cross_entropy(x, head, targets, jnp.float32(z_weight), LossOptions(softcap, chunk))
        return sums.objective, sums

    (_, sums), grads = jax.value_and_grad(objective, argnums=(0, 1), has_aux=True)(x, head)
    return sums, grads


@pytest.mark.parametrize(
    ("softcap", "chunk"),
    others_slow(
        lambda softcap, chunk: chunk in (0, 100) or (softcap, chunk) in ((2.0, 1), (0.0, 5), (2.0, 13)),
        cross([0.0, 2.0], one_in(4, [0, 1, 5, 13, 100])),
    ),
)
def test_sums_and_gradients_are_those_of_a_full_log_softmax(chunk, softcap):
    x, head, targets = example()
    nll, z, count, x_grad, head_grad = by_hand(x, head, targets, Z, softcap)
    sums, grads = value_and_grads(x, head, targets, Z, softcap, chunk)
    np.testing.assert_allclose(sums[:3], (nll + Z * z, nll, count), rtol=1e-6)
    for grad, expected in zip(grads, (x_grad, head_grad), strict=True):  # from logits, their sum and one over V or T
        np.testing.assert_allclose(grad, expected, atol=sum_error(D + 2 * V, np.abs(expected).max()))
    without_grad = cross_entropy(x, head, targets, jnp.float32(Z), LossOptions(softcap, chunk))
    np.testing.assert_allclose(without_grad[:3], sums[:3], rtol=1e-6)


def test_gradient_scales_with_its_cotangent():
    x, head, targets = example()

    def thrice(x):
        return 3 * cross_entropy(x, head, targets, jnp.float32(0), LossOptions(chunk=5)).objective

    np.testing.assert_allclose(jax.grad(thrice)(x), 3 * by_hand(x, head, targets, 0, 0)[3], atol=6e-6)


def test_a_batch_with_nothing_left_is_zero_and_finite():
    x, head, targets = example(ignored=tuple(range(T)))
    sums, grads = value_and_grads(x, head, targets, Z, 0.0, 5)
    assert sums == LossSums(0, 0, 0)
    assert all(np.array_equal(g, np.zeros_like(g)) for g in grads)


def test_ignored_positions_may_hold_anything_finite():
    x, head, targets = example()
    wild = jnp.where(targets[:, None] < 0, 1e4, x)
    plain, plain_grads = value_and_grads(x, head, targets, Z, 0.0, 5)
    sums, grads = value_and_grads(wild, head, targets, Z, 0.0, 5)
    np.testing.assert_allclose(sums[:3], plain[:3], rtol=1e-6)
    np.testing.assert_allclose(grads[0], plain_grads[0], atol=1e-6)
    np.testing.assert_allclose(grads[1], plain_grads[1], atol=1e-5)


def test_large_logits_neither_overflow_nor_lose_the_loss():
    logits = jnp.array([[1000.0, 999.0], [-1000.0, -1002.0]])
    sums = cross_entropy(logits, jnp.eye(2), jnp.array([1, 0]), jnp.float32(0))
    expected = np.log1p(np.exp(1.0)) + np.log1p(np.exp(-2.0))
    np.testing.assert_allclose(sums.nll, expected, rtol=1e-5)


def test_vmap_over_trials_equals_each_alone():
    x, head, targets = example()
    xs, heads, weights = jnp.stack([x, 2 * x]), jnp.stack([head, head / 3]), jnp.array([0.0, Z])
    together = jax.vmap(value_and_grads, in_axes=(0, 0, None, 0, None, None))(xs, heads, targets, weights, 0.0, 5)
    for i in range(2):
        alone = value_and_grads(xs[i], heads[i], targets, weights[i], 0.0, 5)
        mapped = jax.tree.map(lambda a: a[i], together)  # noqa: B023
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), mapped, alone)


def test_bf16_products_with_statistics_and_head_gradient_in_fp32():
    x, head, targets = example()
    sums, (x_grad, head_grad) = value_and_grads(x.astype(jnp.bfloat16), head, targets, Z, 0.0, 5)
    assert {s.dtype for s in jax.tree.leaves(sums)} == {jnp.dtype(jnp.float32)}
    assert (x_grad.dtype, head_grad.dtype) == (jnp.bfloat16, jnp.float32)
    exact = by_hand(x, head, targets, Z, 0.0)
    np.testing.assert_allclose(sums.nll, exact[0], rtol=0.01)
    np.testing.assert_allclose(head_grad, exact[4], atol=0.03 * np.abs(exact[4]).max())


def largest_array(jaxpr):
    """Elements of the largest array that a program makes, in all the programs inside it."""
    inner = [largest_array(j) for equation in jaxpr.eqns for j in jax.extend.core.jaxprs_in_params(equation.params)]
    return max([out.aval.size for equation in jaxpr.eqns for out in equation.outvars] + inner, default=0)


def program(tokens, d_model, vocab, chunk):
    sizes = [(tokens, d_model), (d_model, vocab)]
    args = [jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes] + [jax.ShapeDtypeStruct((tokens,), jnp.int32)]
    return jax.make_jaxpr(lambda *a: value_and_grads(*a, 1e-4, 30.0, chunk))(*args).jaxpr


def test_logits_of_the_whole_batch_exist_nowhere():
    tokens, vocab = 4096, 1000
    assert largest_array(program(tokens, 4, vocab, 64)) == 64 * vocab  # chunks are the largest thing there is
    assert largest_array(program(tokens, 4, vocab, tokens)) == tokens * vocab  # and the walk does see logits


@pytest.mark.full
@pytest.mark.parametrize(("platform", "at_once"), [("cpu", CPU_LOGITS), ("gpu", 1024 * 50_257), ("tpu", 1024 * 50_257)])
def test_by_default_a_chunk_holds_no_more_than_its_share_of_the_platform(platform, at_once):
    with trace_for_platform(platform):
        biggest = largest_array(program(8192, 4, 50_257, 0))
    assert at_once / 2 < biggest <= at_once
    assert chunk_tokens("gpu", 8192, 50_257) == 2048  # a quarter of a large width


@pytest.mark.parametrize(("platform", "wide"), one_in(3, [("gpu", 0), ("cpu", 2), ("tpu", 0)]))
def test_accelerators_multiply_bf16_s_gradients_in_bf16(platform, wide):
    """Two products take the logits' gradient: in fp32 a GPU has half the rate for them. Sums stay in fp32."""
    x, head, targets = example()
    with trace_for_platform(platform):
        jaxpr = jax.make_jaxpr(lambda x: value_and_grads(x, head, targets, Z, 0.0, 5))(x.astype(jnp.bfloat16)).jaxpr
    products = list(find(jaxpr, "dot_general"))
    assert len(products) == 3 and all(each.outvars[0].aval.dtype == jnp.float32 for each in products)
    assert sum(any(operand.aval.dtype == jnp.float32 for operand in each.invars) for each in products) == wide


def test_chunks_are_even_so_that_hardly_anything_is_filled_up():
    """1,024 tokens at most 83 at a time: 13 chunks of 79, not 12 of 83 and one of 28."""
    longest = max(e.params["length"] for e in find(program(1024, 4, 50, 83), "scan"))
    assert longest == 13
    assert largest_array(program(1024, 4, 500, 83)) == 79 * 500


def test_a_compiled_program_multiplies_no_transposed_operand_on_a_cpu():
    """XLA folds a transposition into the product, which then takes it twice as long; the barrier must survive that."""
    sizes = [(512, 64), (64, 4096)]
    args = [jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes] + [jax.ShapeDtypeStruct((512,), jnp.int32)]
    text = value_and_grads.lower(*args, 1e-4, 0.0, 128).compile().as_text()
    contracted = re.findall(r"lhs_contracting_dims={(\d)}", text)
    assert contracted == ["1"] * 3  # logits, gradient of x, gradient of the head


def find(jaxpr, name):
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from find(inner, name)
