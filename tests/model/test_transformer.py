"""The whole model: causality by gradients, float64 forwards written from the papers, remat, precision, declarations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.model import transformer
from scalelab.model.attention.documents import SplitTokens
from scalelab.model.layers import MLP
from scalelab.model.pieces import run_pieces
from scalelab.precision.policy import FP32, POLICIES
from tests.model.shapes import PRESETS, chain_terms, distance, loss_and_grads, random_params, shape, tokens
from tests.quick import one_in
from tests.rounding import RMS, sum_error

SMALL = {"d_model": 16, "n_heads": 2, "seq_len": 6, "vocab_size": 8, "remat": "none"}
logits = jax.jit(transformer.next_token_logits, static_argnums=0)
CAUSAL = {preset: shape(preset, **SMALL) for preset in PRESETS}  # rope, learned, relative
CAUSAL["none"] = shape(**SMALL, position="none")
CAUSAL["grouped, qk_norm"] = shape(**SMALL, n_kv_heads=1, qk_norm=True)


@pytest.mark.parametrize("of", one_in(6, CAUSAL.values()), ids=CAUSAL)
def test_causality_by_gradients(of):
    """d hidden[t] / d embedding[j] is zero exactly for j > t; tokens are distinct, so rows are positions."""
    tokens_BS = jnp.asarray([[5, 2, 7, 0, 3, 6]])
    params = random_params(of)

    pieces = transformer.make_pieces(of, FP32, SplitTokens(tokens_BS, None), lambda params, x_BSD, head_DV: x_BSD)

    def hidden(embed_VD):
        return run_pieces(of, pieces, params | {"embed": {"w": embed_VD}})[0][0]

    influence_SDVD = jax.jit(jax.jacrev(hidden))(params["embed"]["w"])
    influence_TJ = np.abs(influence_SDVD).sum((1, 3))[:, tokens_BS[0]]
    assert not np.triu(influence_TJ, 1).any()
    assert (influence_TJ[np.tril_indices(6)] > 1e-4).all()


def in_float64(of):
    """(random parameters, the same in float64, random tokens)."""
    params = random_params(of, noise=0.1)
    return params, jax.tree.map(lambda x: np.asarray(x, np.float64), params), np.asarray(tokens(of)[:, :-1])


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def causal_mix(q, k, v):
    """softmax(q k / sqrt(d)) v over the past, [B, N, S, H] each."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(np.where(np.tri(q.shape[2], dtype=bool), scores, -np.inf)) @ v


def test_llama_is_the_paper_in_float64():
    """Touvron et al. 2023 with two queries a key (Ainslie et al. 2023) and a head width of its own."""
    of = shape(n_kv_heads=2, d_head=10, rope_theta=50.0, norm_eps=1e-3)
    params, p, t = in_float64(of)

    def rms(x, gain):
        return gain * x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-3)

    turn = np.exp(1j * np.arange(12)[:, None] * 50.0 ** (-2 * np.arange(5) / 10))

    def rotate(x):  # [B, N, S, H]
        z = (x[..., :5] + 1j * x[..., 5:]) * turn
        return np.concatenate([z.real, z.imag], -1)

    x = p["embed"]["w"][t]
    for i in range(2):
        block = jax.tree.map(lambda w: w[i], p["blocks"])  # noqa: B023
        a, h = block["attention"], rms(x, block["attention_norm"]["g"])
        q, k, v = (np.einsum("bsd,dnh->bnsh", h, a[name]["w"]) for name in "qkv")
        k, v = k.repeat(2, axis=1), v.repeat(2, axis=1)
        x = x + np.einsum("bnsh,nhd->bsd", causal_mix(rotate(q), rotate(k), v), a["o"]["w"])
        h, m = rms(x, block["mlp_norm"]["g"]), block["mlp"]
        gate = h @ m["gate"]["w"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ m["up"]["w"])) @ m["down"]["w"]
    expected = rms(x, p["final_norm"]["g"]) @ p["head"]["w"]
    assert distance(logits(of, params, t), expected) < sum_error(chain_terms(of), deviations=RMS)
    np.testing.assert_allclose(logits(of, params, t), expected, atol=1e-5 * np.abs(expected).max())


def test_gpt2_is_the_paper_in_float64():
    """Radford et al. 2019: LayerNorm before each part and at the end, tanh-GELU, biases everywhere, tied head."""
    of = shape("gpt2")
    params, p, t = in_float64(of)

    def norm(x, at):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + 1e-5) * at["g"] + at["b"]

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    x = p["embed"]["w"][t] + p["positions"]["w"]
    for i in range(2):
        block = jax.tree.map(lambda w: w[i], p["blocks"])  # noqa: B023
        a, h = block["attention"], norm(x, block["attention_norm"])
        q, k, v = (np.einsum("bsd,dnh->bnsh", h, a[name]["w"]) + a[name]["b"][:, None] for name in "qkv")
        x = x + np.einsum("bnsh,nhd->bsd", causal_mix(q, k, v), a["o"]["w"]) + a["o"]["b"]
        m = block["mlp"]
        h = gelu(norm(x, block["mlp_norm"]) @ m["up"]["w"] + m["up"]["b"])
        x = x + h @ m["down"]["w"] + m["down"]["b"]
    expected = norm(x, p["final_norm"]) @ p["embed"]["w"].T
    assert distance(logits(of, params, t), expected) < sum_error(chain_terms(of), deviations=RMS)
    np.testing.assert_allclose(logits(of, params, t), expected, atol=1e-5 * np.abs(expected).max())


def test_squared_relu():
    """So et al. 2021, one hidden unit at a time: the sign decides, and doubling the input gives four times as much."""
    of = shape(mlp="relu2", n_layers=1)
    module = MLP("relu2", 2, 2, False, FP32)
    params = jax.tree.map(lambda _: jnp.eye(2), module.init(jax.random.key(0), jnp.zeros((1, 1, 2))))
    y = module.apply(params, jnp.asarray([[[3.0, -2.0], [6.0, 1.0]]]))
    np.testing.assert_array_equal(y, [[[9.0, 0.0], [36.0, 1.0]]])
    assert "gate" not in transformer.parameter_declarations(of)["blocks"]["mlp"]


@pytest.mark.full
def test_remat_changes_memory_alone():
    of = [shape(remat=remat) for remat in ("none", "dots", "full")]
    params, batch = random_params(of[0], noise=0.1), tokens(of[0])
    loss, grads = loss_and_grads(of[0], params, batch)
    for other in of[1:]:
        again, again_grads = loss_and_grads(other, params, batch)
        assert abs(again - loss) < 1e-6 * loss
        assert distance(again_grads, grads) < 1e-6


@pytest.mark.full
def test_loss_is_the_cross_entropy_of_the_logits():
    of = shape(logit_softcap=1.5)
    params, batch = random_params(of), tokens(of)
    inputs, targets = batch[:, :-1], batch[:, 1:].at[0, :5].set(-1)
    log_p = jax.nn.log_softmax(logits(of, params, inputs))
    expected = -sum(log_p[b, s, targets[b, s]] for b, s in np.argwhere(np.asarray(targets) >= 0))
    sums = transformer.summed_loss(of, params, inputs, targets, 0.0)
    np.testing.assert_allclose(sums.nll, expected, rtol=1e-5)
    assert sums.tokens == 2 * 12 - 5


def test_softcap_bounds_logits_by_a_tanh():
    capped, free = shape(logit_softcap=1.5), shape()
    params, batch = random_params(free), tokens(free)[:, :-1]
    raw = logits(free, params, batch)
    assert np.abs(raw).max() > 1.5
    np.testing.assert_allclose(logits(capped, params, batch), 1.5 * np.tanh(raw / 1.5), atol=1e-5)


def test_a_tied_head_is_the_embedding_transposed():
    tied, untied = shape(tied_head=True), shape()
    params, batch = random_params(untied), tokens(untied)
    shared = {k: v for k, v in params.items() if k != "head"}
    assert set(transformer.parameter_declarations(tied)) == set(shared)
    same = params | {"head": {"w": params["embed"]["w"].T}}
    loss, grads = loss_and_grads(tied, shared, batch)
    loss_apart, apart = loss_and_grads(untied, same, batch)
    terms = chain_terms(tied)
    assert abs(loss - loss_apart) < sum_error(terms, loss, RMS)  # a mean over tokens
    both = apart["embed"]["w"] + apart["head"]["w"].T
    np.testing.assert_allclose(grads["embed"]["w"], both, atol=sum_error(2 * terms, np.abs(both).max()))


@pytest.mark.slow
def test_bf16_is_near_fp32_leaf_by_leaf():
    """2,048 tokens of few kinds: the gradients of biases and embedding rows are long sums, which bf16 can't hold."""
    of = shape("chinchilla", n_layers=1, seq_len=64, vocab_size=16, tied_head=False, remat="none")
    params = transformer.init_params(of, jax.random.key(0))
    batch = jnp.minimum(tokens(of, batch=32) ** 2 // 16, 15)
    loss, grads = loss_and_grads(of, params, batch)
    loss_bf16, grads_bf16 = loss_and_grads(of, params, batch, 0.0, POLICIES["bf16"])
    assert loss_bf16.dtype == jnp.float32
    assert abs(loss_bf16 - loss) < 1e-3 * loss
    assert {g.dtype for g in jax.tree.leaves(grads_bf16)} == {jnp.dtype(jnp.float32)}
    for path, exact in jax.tree_util.tree_leaves_with_path(grads):
        name = jax.tree_util.keystr(path)
        rough = functools.reduce(lambda tree, key: tree[key.key], path, grads_bf16)
        if "['k']['b']" in name:  # adds the same to every score of a query: its gradient is zero
            assert np.abs(rough).max() < 1e-2 * np.abs(grads["blocks"]["attention"]["q"]["b"]).max()
        else:
            assert distance([rough], [exact]) < 0.02, name


@pytest.mark.full
@pytest.mark.parametrize("preset", one_in(2, PRESETS))
def test_declarations_say_what_init_makes(preset):
    of = shape(preset, d_model=64, vocab_size=256)
    declared, params = (
        transformer.parameter_declarations(of),
        jax.jit(transformer.init_params, static_argnums=0)(of, jax.random.key(0)),
    )
    assert jax.tree.structure(declared) == jax.tree.structure(params)
    for (path, d), x in zip(jax.tree_util.tree_leaves_with_path(declared), jax.tree.leaves(params), strict=True):
        name = jax.tree_util.keystr(path)
        assert (d.shape, x.dtype) == (x.shape, jnp.float32), name
        assert len(d.axes) == x.ndim, name
        assert d.stack == (("layers",) if "['blocks']" in name else ()), name
        if d.std is None:
            assert (np.asarray(x) == (1.0 if d.role == "gain" else 0.0)).all(), name
        else:
            assert abs(np.std(x) / d.std - 1) < 0.1, name
            assert abs(np.mean(x)) < 5 * d.std / np.sqrt(x.size), name
            assert not d.stack or not np.array_equal(x[0], x[1]), f"{name}: layers are drawn alike"
        if d.is_hidden_matrix:
            assert d.std == pytest.approx(d.fan_in**-0.5), name


def test_every_number_of_a_shape_is_used_by_the_declarations():
    of = shape(d_model=48, n_heads=6, n_kv_heads=3, d_head=10, d_ff=20, n_layers=5, vocab_size=11, seq_len=7)
    sizes = {
        "layers": 5, "embed": 48, "heads": 6, "kv_heads": 3, "head_dim": 10, "mlp": 20, "vocab": 11, "seq": 7,
    }  # fmt: skip
    for d in jax.tree.leaves(transformer.parameter_declarations(of)):
        assert d.shape == tuple(sizes[axis] for axis in d.axes)


def test_init_is_a_function_of_the_key():
    of = shape(**SMALL)
    init = jax.jit(transformer.init_params, static_argnums=0)
    one, same, other = (init(of, jax.random.key(seed)) for seed in (0, 0, 1))
    assert distance(same, one) == 0
    assert distance(other, one) > 0.1


@pytest.mark.full
def test_the_program_that_draws_parameters_does_not_grow_with_the_layers():
    """Unrolled, as a step's blocks are, it took as long to compile as the step."""

    def compiled_lines(layers):
        of = shape(**SMALL | {"n_layers": layers})
        init = jax.jit(functools.partial(transformer.init_params, of)).lower(jax.random.key(0))
        return init.compile().as_text().count("\n")

    assert compiled_lines(6) < 1.5 * compiled_lines(2)  # three times as many, if each layer had its own


def test_a_shorter_sequence_than_declared_is_a_prefix():
    of = shape("gpt2")
    params, batch = random_params(of), tokens(of)[:, :-1]
    np.testing.assert_allclose(logits(of, params, batch[:, :5]), logits(of, params, batch)[:, :5], atol=1e-4)


@pytest.mark.full
def test_one_trace_of_the_model_declares_it_and_draws_it_in_every_program():
    """What is drawn are flax's own bits, under float64 and by another kind of key too."""
    of = shape("chinchilla", **SMALL, n_layers=3)
    transformer._trace_init.cache_clear()
    transformer._declarations.cache_clear()
    transformer._declared.cache_clear()
    assert transformer.parameter_declarations(of) and transformer.variable_declarations(of) == {}
    key = jax.random.key(1)
    drawn = [jax.jit(lambda key, i=i: (transformer.init_params(of, key), i))(key)[0] for i in range(2)]
    assert transformer._trace_init.cache_info().misses == 1
    with jax.enable_x64(True):
        drawn.append(jax.jit(transformer.init_params, static_argnums=0)(of, key))
    rbg = jax.random.key(1, impl="rbg")
    drawn.append(jax.jit(transformer.init_params, static_argnums=0)(of, rbg))
    for params, seed in zip(drawn, [key, key, key, rbg], strict=True):
        own = transformer.unbox(jax.jit(transformer._init, static_argnums=0)(of, seed)["params"])[0]
        assert jax.tree.structure(own) == jax.tree.structure(params)
        for ours, flaxs in zip(jax.tree.leaves(params), jax.tree.leaves(own), strict=True):
            assert ours.dtype == flaxs.dtype and np.array_equal(ours, flaxs)
