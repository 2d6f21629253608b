"""Attention and positions against loops and float64 written straight from the papers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.model import transformer
from scalelab.model.attention import attention, blockwise, kernels
from scalelab.model.attention.mask import Scoring
from scalelab.model.attention.positions.relative import RelativeInputs, shift_distances, sinusoidal_encoding
from scalelab.model.attention.positions.rotary import apply_rope, rope_frequencies
from scalelab.model.stacks import UNIFORM_LAYERS
from scalelab.precision.policy import POLICIES
from tests.model.shapes import random_params, shape, tokens
from tests.quick import one_in
from tests.rounding import sum_error

B, S, H = 2, 7, 8
SCALE = 0.3
attend = jax.jit(kernels.compute_attention, static_argnums=4)
HOWS = ("plain", "xla", "blockwise")


@functools.cache
def random_qkv(n_heads=4, n_kv_heads=4, dtype=jnp.float32, seed=0):
    sizes = [(B, S, n_heads, H), (B, S, n_kv_heads, H), (B, S, n_kv_heads, H)]
    random = np.random.default_rng(seed)
    return [jnp.asarray(random.normal(size=size), dtype) for size in sizes]


@functools.cache
def random_relative(length=S, dtype=jnp.float32):
    random = np.random.default_rng(9)
    return RelativeInputs(
        *[jnp.asarray(random.normal(size=size), dtype) for size in ((B, length, 4, H), (length, 4, H))]
    )


def slow_attention(q, k, v, scale, relative=None, softcap=0.0):
    """softmax(cap(scale (q k + q' r))) v over j <= i, one query of one head at a time, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros(q.shape)
    group = q.shape[2] // k.shape[2]
    for b, i, n in np.ndindex(q.shape[:3]):
        scores = np.array([scale * q[b, i, n] @ k[b, j, n // group] for j in range(i + 1)])
        if relative is not None:
            far_q, far_r = (np.asarray(x, np.float64) for x in relative)
            scores += scale * np.array([far_q[b, i, n] @ far_r[i - j, n] for j in range(i + 1)])
        scores = softcap * np.tanh(scores / softcap) if softcap else scores
        weights = np.exp(scores - scores.max())
        out[b, i, n] = weights / weights.sum() @ v[b, : i + 1, n // group]
    return out


@pytest.mark.parametrize("n_kv_heads", one_in(3, [4, 2, 1]))
@pytest.mark.parametrize("by_distance", [False, True])
def test_every_way_equals_a_loop(n_kv_heads, by_distance, monkeypatch):
    monkeypatch.setattr(blockwise, "CPU_BLOCK", 3)
    q, k, v = random_qkv(n_kv_heads=n_kv_heads)
    relative = random_relative() if by_distance else None
    expected = slow_attention(q, k, v, SCALE, relative)
    for how in HOWS:
        np.testing.assert_allclose(
            attend(q, k, v, Scoring(SCALE, relative=relative), how), expected, atol=2e-6, err_msg=how
        )


@pytest.mark.parametrize("by_distance", [False, True])
def test_capped_logits_equal_a_loop_and_have_one_gradient(by_distance, monkeypatch):
    """Gemma 2 (2024), section 2; the gradient in blocks is written out, that of `plain` is jax's."""
    monkeypatch.setattr(blockwise, "CPU_BLOCK", 3)
    q, k, v = random_qkv(n_kv_heads=2)
    scoring = Scoring(SCALE, relative=random_relative() if by_distance else None, softcap=0.7)
    expected = slow_attention(q, k, v, SCALE, scoring.relative, 0.7)

    def loss(how, q, k, v, scoring):
        return jnp.sum(jnp.sin(attend(q, k, v, scoring, how)))

    gradients = []
    for how in ("plain", "blockwise"):
        np.testing.assert_allclose(attend(q, k, v, scoring, how), expected, atol=2e-6, err_msg=how)
        gradients.append(jax.jit(jax.grad(functools.partial(loss, how), argnums=(0, 1, 2, 3)))(q, k, v, scoring))
    largest = max(jnp.abs(leaf).max() for leaf in jax.tree.leaves(gradients[0]))
    for plain, blocks in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(plain, blocks, atol=sum_error(8 * (S + H), largest))


@pytest.mark.parametrize("by_distance", [False, True])
def test_every_way_in_bf16(by_distance):
    q, k, v = random_qkv(n_kv_heads=2, dtype=jnp.bfloat16)
    relative = random_relative(dtype=jnp.bfloat16) if by_distance else None
    expected = slow_attention(q, k, v, SCALE, relative)
    for how in HOWS:
        y = attend(q, k, v, Scoring(SCALE, relative=relative), how)
        assert y.dtype == jnp.bfloat16
        np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=0.02, err_msg=how)


def test_every_way_has_the_same_gradient():
    q, k, v = random_qkv(n_kv_heads=2)

    def gradient(how):
        return jax.jit(jax.grad(lambda *x: jnp.sum(jnp.sin(attend(*x, Scoring(SCALE), how))), argnums=(0, 1, 2)))(
            q, k, v
        )

    for plain, xla in zip(gradient("plain"), gradient("xla"), strict=True):
        np.testing.assert_allclose(plain, xla, atol=sum_error(4 * (S + H), np.abs(xla).max()))  # both ways, twice


def test_rope_is_a_rotation_of_complex_pairs():
    """Su et al. 2021, eq. 34: pair i turns by position x theta^(-2i/H); our pairs are (i, i + H/2)."""
    x, theta = np.asarray(random_qkv()[0], np.float64), 100.0
    pairs = x[..., : H // 2] + 1j * x[..., H // 2 :]
    angles = np.arange(S)[:, None] * theta ** (-2 * np.arange(H // 2) / H)
    turned = pairs * np.exp(1j * angles)[None, :, None, :]
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    np.testing.assert_allclose(
        apply_rope(jnp.asarray(x, jnp.float32), rope_frequencies(shape(d_head=H, rope_theta=theta))),
        expected,
        atol=1e-5,
    )


def test_rope_scores_depend_on_the_distance_alone():
    q, k = (jnp.tile(jax.random.normal(jax.random.key(i), (1, 1, 1, H)), (1, 64, 1, 1)) for i in range(2))
    turns = rope_frequencies(shape(d_head=H))
    scores = np.asarray(jnp.einsum("BSNH,BTNH->ST", apply_rope(q, turns), apply_rope(k, turns)))
    for distance in range(-63, 64):
        diagonal = np.diagonal(scores, distance)
        assert np.ptp(diagonal) < 1e-4
    assert np.ptp(scores) > 0.1  # and it does depend on that


def test_sinusoids_are_those_of_the_paper():
    """Vaswani et al. 2017, section 3.5; sines and cosines in two halves, not interleaved, as in Transformer-XL."""
    table = np.asarray(sinusoidal_encoding(50, 6))
    for t, i in np.ndindex(50, 3):
        angle = t / 10_000 ** (2 * i / 6)
        assert abs(table[t, i] - np.sin(angle)) < 1e-5
        assert abs(table[t, i + 3] - np.cos(angle)) < 1e-5


def test_shift_distances_is_an_index():
    x = np.arange(2 * 3 * 5 * 5, dtype=np.float32).reshape(2, 3, 5, 5)
    shifted = np.asarray(shift_distances(jnp.asarray(x)))
    assert shifted.shape == x.shape
    for i in range(5):
        for j in range(i + 1):
            np.testing.assert_array_equal(shifted[:, :, i, j], x[:, :, i, i - j])


@functools.partial(jax.jit, static_argnums=0)
def layer(of, params, x_BSD):
    return attention.Attention(of, POLICIES["fp32"]).apply({"params": params}, x_BSD, UNIFORM_LAYERS, None, None)


def attention_params(of):
    """Random fp32 parameters of one attention, biases and position vectors included."""
    return jax.tree.map(lambda w: w[0], random_params(of)["blocks"]["attention"])


def test_relative_attention_is_dai_et_al_term_by_term():
    """Dai et al. 2019, section 3.3, terms (a) to (d), each score on its own."""
    of = shape("chinchilla", seq_len=S)
    params = attention_params(of)
    p, x = jax.tree.map(np.float64, params), np.random.default_rng(1).normal(size=(B, S, of.d_model))
    q, k, v = (np.einsum("bsd,dnh->bsnh", x, p[name]["w"]) + p[name]["b"] for name in "qkv")
    y = np.zeros(q.shape)
    for b, i, n in np.ndindex(B, S, of.n_heads):
        scores = np.zeros(i + 1)
        for j in range(i + 1):
            angle = (i - j) / 10_000 ** (2 * np.arange(of.d_model // 2) / of.d_model)
            r = np.einsum("d,dh->h", np.concatenate([np.sin(angle), np.cos(angle)]), p["r"]["w"][:, n])
            content, position = q[b, i, n] @ k[b, j, n], q[b, i, n] @ r
            everywhere, distance = p["content_bias"][n] @ k[b, j, n], p["position_bias"][n] @ r
            scores[j] = (content + position + everywhere + distance) / np.sqrt(of.d_head)
        weights = np.exp(scores - scores.max())
        y[b, i, n] = weights / weights.sum() @ v[b, : i + 1, n]
    expected = np.einsum("bsnh,nhd->bsd", y, p["o"]["w"]) + p["o"]["b"]
    np.testing.assert_allclose(layer(of, params, jnp.asarray(x, jnp.float32)), expected, atol=2e-5)


@pytest.mark.full
def test_qk_norm_makes_attention_blind_to_the_scale_of_queries_and_keys():
    of = shape(qk_norm=True, norm_eps=1e-12, seq_len=S)
    params = attention_params(of)
    x = jax.random.normal(jax.random.key(0), (B, S, of.d_model))
    scaled = {
        **params,
        "q": jax.tree.map(lambda w: 7 * w, params["q"]),
        "k": jax.tree.map(lambda w: w / 5, params["k"]),
    }
    np.testing.assert_allclose(layer(of, scaled, x), layer(of, params, x), atol=1e-5)
    without = dataclasses.replace(of, qk_norm=False)
    bare = {name: params[name] for name in "qkvo"}
    assert np.abs(layer(without, bare, x) - layer(of, params, x)).max() > 0.01


def test_scale_of_attention():
    """standard: 1/sqrt(d_head). mup: falls as 1/d_head when heads widen, equals standard at the base, for any heads."""
    assert attention.attention_scale(shape()) == pytest.approx(8**-0.5)
    scales = [attention.attention_scale(shape(parametrization="mup", d_model=d)) for d in (64, 128, 256)]
    np.testing.assert_allclose(scales, [0.25, 0.125, 0.0625])
    more = [shape(parametrization="mup", d_model=d, n_heads=d // 16, base_d_head=16) for d in (64, 128, 256)]
    np.testing.assert_allclose([attention.attention_scale(of) for of in more], 0.25)


FITS = {"d_model": 64, "n_heads": 1}


@pytest.mark.parametrize(
    ("backend", "changes", "dtype", "expected"),
    [
        ("gpu", {}, jnp.bfloat16, "cudnn"),
        ("gpu", {"d_head": 128, "n_heads": 4, "n_kv_heads": 2}, jnp.bfloat16, "cudnn"),
        ("gpu", {"position": "learned"}, jnp.bfloat16, "cudnn"),
        ("gpu", {}, jnp.float16, "cudnn"),
        ("gpu", {}, jnp.float32, "xla"),
        ("gpu", {"d_head": 256}, jnp.bfloat16, "cudnn"),
        ("gpu", {"d_head": 264}, jnp.bfloat16, "xla"),
        ("gpu", {"d_head": 12}, jnp.bfloat16, "xla"),
        ("gpu", {"position": "relative"}, jnp.bfloat16, "xla"),
        ("cpu", {}, jnp.bfloat16, "plain"),
        ("tpu", {}, jnp.bfloat16, "xla"),
    ],
)
def test_cudnn_where_it_can_and_only_there(monkeypatch, backend, changes, dtype, expected):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert kernels.choose_kernel(shape(**FITS | changes), jnp.dtype(dtype)) == expected


def test_the_chosen_kernel_is_the_one_that_runs(monkeypatch):
    seen = []

    def spy(q, k, v, segment_BS, options):
        seen.append((segment_BS, options.causal, options.window))
        return q

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(kernels.cudnn, "cudnn_attention", spy)
    of = shape(**FITS)
    module, x = attention.Attention(of, POLICIES["bf16"]), jnp.zeros((1, 4, of.d_model), jnp.bfloat16)
    jax.eval_shape(module.init, jax.random.key(0), x, UNIFORM_LAYERS, None, None)
    assert seen == [(None, True, 0)]


def test_the_model_lowers_to_cudnn_forward_and_backward(monkeypatch):
    """The program for a GPU, written on any machine."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    of = shape(d_model=64, n_kv_heads=2, seq_len=128)
    params = jax.tree.map(lambda d: jax.ShapeDtypeStruct(d.shape, jnp.float32), transformer.parameter_declarations(of))

    def objective(params, part):
        return transformer.summed_loss(of, params, part[:, :-1], part[:, 1:], 0.0, POLICIES["bf16"]).objective

    program = jax.jit(jax.grad(objective)).trace(params, tokens(of)).lower(lowering_platforms=("cuda",)).as_text()
    assert "cudnn$fmhaSoftmax(" in program
    assert "cudnn$fmhaSoftmaxBackward(" in program
