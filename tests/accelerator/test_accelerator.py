"""What an accelerator must get right, in one process and at most 90 s: `make gpu` runs it on a card, CI on a CPU.

Every limit is a bound on rounding, not what one chip showed: u = 2^-p of the format that operands are rounded to. An
error of a product is compared by norms: K terms, each rounded by at most u, differ by at most 2 u as a whole.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import api
from scalelab import config as config_lib
from scalelab.configs import tiny
from scalelab.model.attention import kernels
from scalelab.model.attention.mask import NO_MASK, MaskInfo, Scoring
from scalelab.model.sums.cross_entropy import LossOptions, cross_entropy
from scalelab.precision.policy import POLICIES, array_dtype
from scalelab.precision.products import mixed_matmul, product_precision
from scalelab.train.step.program import PACKINGS
from tests.optim.frame import assert_follows, by_chain, problem, rates, setting
from tests.optim.test_elementwise import lion, moved
from tests.optim.test_muon import by_muon
from tests.quick import one_in

BATCH, LENGTH, HEADS, KEYS, WIDTH = 2, 256, 4, 2, 128
U_BF16, U_TF32, U_FP32 = 2.0**-8, 2.0**-11, 2.0**-24
KERNELS = ("cudnn", "splash", "blockwise", "xla", "plain")


def error_of(exact, other):
    exact, other = np.asarray(exact, np.float64), np.asarray(other, np.float64)
    return np.linalg.norm(other - exact) / np.linalg.norm(exact)


def attention_by_hand(q, k, v, segments, window):
    """(output, gradients of the sum of its products with 1, 2, 3, …) in float64, with derivatives written out."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, HEADS // KEYS, axis=2) for x in (k, v))
    i, j = np.arange(LENGTH)[:, None], np.arange(LENGTH)[None]
    seen = (j <= i) & (j > i - window) if window else j <= i
    seen = seen & (segments[:, :, None] == segments[:, None, :])
    scores = np.where(seen[:, None], np.einsum("bsnh,btnh->bnst", q, k) * WIDTH**-0.5, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    y = np.einsum("bnst,btnh->bsnh", weights, v)
    dy = slope_of(y)
    dv = np.einsum("bnst,bsnh->btnh", weights, dy)
    dw = np.einsum("bsnh,btnh->bnst", dy, v)
    ds = weights * (dw - (weights * dw).sum(-1, keepdims=True)) * WIDTH**-0.5
    dq, dk = np.einsum("bnst,btnh->bsnh", ds, k), np.einsum("bnst,bsnh->btnh", ds, q)
    shared = (BATCH, LENGTH, KEYS, HEADS // KEYS, WIDTH)
    return y, (dq, dk.reshape(shared).sum(3), dv.reshape(shared).sum(3))


def slope_of(y):
    """A fixed weight for each output: the gradient of the weighted sum."""
    return np.random.default_rng(1).normal(size=y.shape)


@pytest.mark.parametrize("window", [0, 48])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("kind", one_in(5, KERNELS))
def test_attention_and_its_gradients(kind, documents, window):
    """Weights and values are rounded to bf16, so is each gradient, after up to three products in turn: 2 u each."""
    sizes = {"model.d_model": HEADS * WIDTH, "model.n_heads": HEADS, "model.seq_len": LENGTH}
    shape = config_lib.static(config_lib.resolve(config_lib.override(tiny.get_config(), sizes))).model
    if why := kernels.kernel_obstacle(kind, shape, jnp.dtype(jnp.bfloat16), kernels.traced_target(), documents):
        pytest.skip(why)
    random = np.random.default_rng(0)
    sizes = ((BATCH, LENGTH, n, WIDTH) for n in (HEADS, KEYS, KEYS))
    q, k, v = (jnp.asarray(random.normal(size=size), jnp.bfloat16) for size in sizes)
    segments = np.cumsum(random.random((BATCH, LENGTH)) < 0.03, axis=1) if documents else np.zeros((BATCH, LENGTH), int)
    info = MaskInfo(jnp.asarray(segments, jnp.int32)) if documents else NO_MASK

    def weighted(q, k, v):
        y = kernels.compute_attention(q, k, v, Scoring(WIDTH**-0.5, info, window), kind)
        return jnp.sum(y.astype(jnp.float32) * jnp.asarray(slope_of(y), jnp.float32)), y

    (_, y), gradients = jax.jit(jax.value_and_grad(weighted, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    exact, exact_gradients = attention_by_hand(q, k, v, segments, window)
    assert error_of(exact, y) < 4 * U_BF16
    for one, other in zip(exact_gradients, gradients, strict=True):
        assert error_of(one, other) < 6 * U_BF16


# Below the least a product was rounded to more bits than its policy says, above the most to fewer.
PRODUCTS = {"fp32": (0.0, 64 * U_FP32), "tf32": (U_TF32 / 8, 2 * U_TF32), "bf16": (U_BF16 / 8, 2 * U_BF16)}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_have_the_bits_of_their_policy(name):
    policy = POLICIES[name]
    random = np.random.default_rng(0)
    x, w = (np.float32(random.normal(size=size)) for size in ((256, 512), (512, 384)))
    with product_precision(policy):
        y = jax.jit(functools.partial(mixed_matmul, form=array_dtype(policy.compute)))(x, w)
    low, high = PRODUCTS[name]
    assert low <= error_of(np.float64(x) @ np.float64(w), y) < high


@pytest.mark.parametrize("chunk", [0, 64, 100])
def test_a_loss_in_chunks(chunk):
    """Against a log-softmax in float64: each sum of fp32 is within its number of roundings, in turn 16 products."""
    random = np.random.default_rng(0)
    x, head = random.normal(size=(256, 64)), random.normal(size=(64, 1000)) / 8
    targets = random.integers(0, 1000, 256)

    def objective(x, head):
        with jax.default_matmul_precision("highest"):
            return cross_entropy(x, head, jnp.asarray(targets), jnp.float32(0.0), LossOptions(chunk=chunk)).objective

    value, gradients = jax.jit(jax.value_and_grad(objective, argnums=(0, 1)))(jnp.float32(x), jnp.float32(head))
    x, head = np.float64(np.float32(x)), np.float64(np.float32(head))
    logits = x @ head
    probabilities = np.exp(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    slope = probabilities - np.eye(1000)[targets]
    assert abs(value / -np.log(probabilities[np.arange(256), targets]).sum() - 1) < 64 * U_FP32
    assert error_of(slope @ head.T, gradients[0]) < 256 * U_FP32
    assert error_of(x.T @ slope, gradients[1]) < 256 * U_FP32


@pytest.mark.parametrize("name", ["lion", "muon"])
def test_steps_of_an_optimizer_follow_its_paper(name):
    """Lion exactly; Muon's Newton-Schulz products are in bf16, five deep: up to 2 u each and as much for its input."""
    static, h = setting(name, **{"optim__newton_schulz": "bf16"} if name == "muon" else {})
    declared, params, gradients = problem()
    lrs = rates(1e-3)
    if name == "lion":
        expected, tolerance = moved(h, declared, params, gradients, lrs, lion(h, declared)), 1e-5
    else:
        expected, tolerance = by_muon(h, declared, params, gradients, lrs), 12 * U_BF16
    with jax.default_matmul_precision("highest"):
        actual = by_chain(static, h, params, gradients, lrs)[0]
    assert_follows(expected, actual, params, tolerance=tolerance)


def short_config(**changes):
    values = {"model.d_model": 32, "model.n_heads": 2, "train.steps": 12, "data.source": "synthetic"}
    values |= {"data.n_tokens": 50_000, "model.vocab_size": 256, "eval.every_steps": 12, "checkpoint.every_steps": 6}
    values |= {"train.steps_per_dispatch": 6}
    return config_lib.override(tiny.get_config(), values | changes)


@pytest.mark.full
def test_a_restored_run_evaluates_as_it_did_and_goes_on(tmp_path):
    """A checkpoint of the device's arrays: a run of 6 steps that goes on to 12 ends as one of 12."""
    whole = api.train(short_config(), tmp_path / "whole")
    calls = iter([False, True])
    api.train(short_config(), tmp_path / "parts", stop=lambda: next(calls, True))
    resumed = api.train(short_config(), tmp_path / "parts")
    assert resumed.resumed_from and whole.final_step == resumed.final_step == 12
    assert abs(resumed.val_loss / whole.val_loss - 1) < 2**12 * U_FP32  # 12 steps, whose sums may differ in order
    logits = api.load(tmp_path / "whole").logits([1, 2, 3])
    assert np.isfinite(logits).all() and np.ptp(logits) > 0


@pytest.mark.full
def test_packed_trials_train_as_each_alone():
    """Under vmap products are batched: sums in another order, over 4 steps."""
    configs = [config_lib.resolve(short_config(**{"optim.peak_lr": lr})) for lr in (1e-3, 3e-3)]
    static = config_lib.static(configs[0])
    h = [config_lib.replace_hparams(config_lib.hparams(c), {"dataset.separator": -1}) for c in configs]
    size = (4, static.global_batch, static.model.seq_len + 1)
    tokens = [np.random.default_rng(seed).integers(256, size=size, dtype=np.int32) for seed in (0, 1)]
    losses = {}
    for how in ("turn", "vmap"):
        program = PACKINGS[how](static, h)
        _, metrics = program.advance(program.init(), tokens, 4)
        losses[how] = np.array([np.asarray(m["train_loss"]) for m in metrics])
    assert np.abs(losses["vmap"] / losses["turn"] - 1).max() < 2**10 * U_FP32
    assert losses["turn"][0, -1] != losses["turn"][1, -1]
