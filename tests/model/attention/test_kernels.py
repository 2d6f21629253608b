"""Attention kernels: each against plain attention, the choice for a backend, memory, programs for other chips."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.errors import BadInput
from scalelab.model import transformer
from scalelab.model.attention import kernels
from scalelab.model.attention import plain as plain_kernels
from scalelab.model.attention.blockwise import blockwise_attention, visible_block_pairs
from scalelab.model.attention.mask import MaskInfo, Scoring
from scalelab.model.attention.positions.relative import RelativeInputs
from tests.model.shapes import shape
from tests.quick import one_in
from tests.rounding import sum_error

SCALE = 0.3


def arrays(length, heads=4, keys=2, width=8, dtype=jnp.float32):
    """q, k, v and weights of a sum over what comes out, for two sequences."""
    random = np.random.default_rng(length)
    return [jnp.asarray(random.normal(size=(2, length, n, width)), dtype) for n in (heads, keys, keys, heads)]


def segments(length):
    return jnp.asarray(np.cumsum(np.random.default_rng(1).random((2, length)) < 0.1, axis=1), jnp.int32)


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(attention, q, k, v, weights):
    """Output and gradients of a weighted sum of it."""
    y, pull = jax.vjp(attention, q, k, v)
    return y, *pull(weights.astype(y.dtype))


def gradient_error(expected):
    """Bound of the rounding of what attention over fifty tokens and heads of eight gives, forward and backward."""
    return sum_error(4 * (50 + 8), np.abs(expected).max())


SIGHTS = {
    "causal": (MaskInfo(), 0),
    "documents": (MaskInfo(segments(50)), 0),
    "window": (MaskInfo(), 7),
    "documents in a window": (MaskInfo(segments(50)), 20),
    "a layer without the window": (MaskInfo(is_global=jnp.array(True)), 7),
    "a layer with it": (MaskInfo(segments(50), jnp.array(False)), 7),
}


def plain(sight, window):
    return lambda q, k, v: kernels.plain_attention(q, k, v, Scoring(SCALE, sight, window))


def blockwise(sight, window, block=16):
    return lambda q, k, v: blockwise_attention(q, k, v, Scoring(SCALE, sight, window), block)


@pytest.mark.parametrize(("sight", "window"), one_in(3, SIGHTS.values()), ids=SIGHTS)
def test_plain_in_chunks_is_plain_forward_and_backward(sight, window, monkeypatch):
    """Fifty queries in three chunks of seventeen, the last one shorter."""
    monkeypatch.setattr(plain_kernels, "LEAST_QUERIES", 8)
    given = arrays(50)
    chunked = lambda q, k, v: kernels.plain_attention(q, k, v, Scoring(SCALE, sight, window), chunks=3)  # noqa: E731
    for expected, actual in zip(
        with_gradients(plain(sight, window), *given), with_gradients(chunked, *given), strict=True
    ):
        np.testing.assert_allclose(actual, expected, atol=gradient_error(expected))


@pytest.mark.parametrize(("sight", "window"), one_in(3, SIGHTS.values()), ids=SIGHTS)
def test_blockwise_is_plain_forward_and_backward(sight, window):
    """Fifty tokens in blocks of sixteen: the last one is filled up."""
    given = arrays(50)
    for expected, actual in zip(
        with_gradients(plain(sight, window), *given), with_gradients(blockwise(sight, window), *given), strict=True
    ):
        np.testing.assert_allclose(actual, expected, atol=gradient_error(expected))


def test_blockwise_in_bf16_is_as_near_to_fp32_as_plain():
    given = arrays(50)
    exact = with_gradients(plain(MaskInfo(), 0), *given)
    half = [x.astype(jnp.bfloat16) for x in given]
    for of in (plain, blockwise):
        for expected, actual in zip(exact, with_gradients(of(MaskInfo(), 0), *half), strict=True):
            assert actual.dtype == jnp.bfloat16
            assert np.abs(actual.astype(jnp.float32) - expected).max() < 0.02 * np.abs(expected).max(), of


def test_a_window_by_hand():
    """All values but one are zero: what comes out tells which queries saw it."""
    v = jnp.zeros((1, 12, 1, 4)).at[0, 3].set(1.0)
    q = k = jnp.zeros((1, 12, 1, 4))
    for of in (plain, functools.partial(blockwise, block=4)):
        seen = np.asarray(of(MaskInfo(), 5)(q, k, v))[0, :, 0, 0]
        assert np.flatnonzero(seen).tolist() == [3, 4, 5, 6, 7]
        np.testing.assert_allclose(seen[3:8], [1 / 4, 1 / 5, 1 / 5, 1 / 5, 1 / 5], rtol=1e-6)


def test_blocks_that_nobody_sees_are_not_computed():
    assert len(visible_block_pairs(8, 16)) == 8 * 9 // 2
    for window in (1, 2, 16, 17, 18, 40):
        needed = {(i // 16, j // 16) for i in range(128) for j in range(128) if 0 <= i - j < window}
        assert {tuple(pair) for pair in visible_block_pairs(8, 16, window).tolist()} == needed


def plain_by_distance(sight=MaskInfo(), window=0):  # noqa: B008  a constant
    return lambda q, k, v, *far: kernels.plain_attention(q, k, v, Scoring(SCALE, sight, window, RelativeInputs(*far)))


def blockwise_by_distance(sight=MaskInfo(), window=0, block=16):  # noqa: B008
    return lambda q, k, v, *far: blockwise_attention(
        q, k, v, Scoring(SCALE, sight, window, RelativeInputs(*far)), block
    )


@functools.partial(jax.jit, static_argnums=0)
def all_gradients(attention, arrays, far, weights):
    y, pull = jax.vjp(attention, *arrays, *far)
    return y, *pull(weights.astype(y.dtype))


@pytest.mark.parametrize(
    "name",
    [
        "documents in a window",
        *(pytest.param(n, marks=pytest.mark.slow) for n in SIGHTS if n != "documents in a window"),
    ],
)
def test_blockwise_knows_distances_forward_and_backward(name):
    """Gradients of queries, keys, values, of what distances are scored with and of the distances; blocks as above."""
    *given, weights = arrays(50, keys=4)
    far = arrays(50)[0] / 2, arrays(50, keys=4)[1][0] / 2
    gradients = all_gradients(blockwise_by_distance(*SIGHTS[name]), given, far, weights)
    expected = all_gradients(plain_by_distance(*SIGHTS[name]), given, far, weights)
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=gradient_error(theirs))
    assert all(np.abs(theirs).max() > 0.1 for theirs in expected)


@pytest.mark.slow
def test_distances_in_bf16_are_as_near_to_fp32_as_plain():
    *given, weights = arrays(50, keys=4)
    far = arrays(50)[0] / 2, arrays(50, keys=4)[1][0] / 2
    exact = all_gradients(plain_by_distance(), given, far, weights)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (given, far))
    for of in (plain_by_distance, blockwise_by_distance):
        for expected, actual in zip(exact, all_gradients(of(), *half, weights), strict=True):
            assert actual.dtype == jnp.bfloat16
            assert np.abs(actual.astype(jnp.float32) - expected).max() < 0.02 * np.abs(expected).max(), of


def temporaries(of, length, by_distance=False):
    given = [jax.ShapeDtypeStruct((1, length, 4, 16), jnp.bfloat16)] * (4 if by_distance else 3)
    given += [jax.ShapeDtypeStruct((length, 4, 16), jnp.bfloat16)] * by_distance
    gradient = jax.grad(lambda *x: jnp.sum(of(*x).astype(jnp.float32)), argnums=tuple(range(len(given))))
    return [jax.jit(f).lower(*given).compile().memory_analysis().temp_size_in_bytes for f in (of, gradient)]


@pytest.mark.full
@pytest.mark.parametrize("by_distance", [pytest.param(False, marks=pytest.mark.slow), True])
def test_memory_grows_with_the_sequence_and_not_with_its_square(by_distance):
    ours = blockwise_by_distance(block=64) if by_distance else blockwise(MaskInfo(), 0, 64)
    theirs = plain_by_distance() if by_distance else plain(MaskInfo(), 0)
    short, long = temporaries(ours, 512, by_distance), temporaries(ours, 1024, by_distance)
    assert all(b < 3 * a for a, b in zip(short, long, strict=True))  # twice, where it is not four times
    all_at_once = [temporaries(theirs, length, by_distance)[1] for length in (512, 1024)]
    assert all_at_once[1] > 3 * all_at_once[0]
    assert long[1] < all_at_once[1] / 10


WIDE = {"d_model": 256, "n_heads": 2, "seq_len": 256}  # two heads of 128


@pytest.mark.parametrize(
    ("backend", "changes", "packed", "expected"),
    [
        ("cpu", {}, False, "plain"),
        ("cpu", {"seq_len": 511}, True, "plain"),
        ("cpu", {"seq_len": 512}, True, "blockwise"),
        ("cpu", {"seq_len": 511, "position": "relative"}, False, "plain"),
        ("cpu", {"seq_len": 512, "position": "relative"}, False, "blockwise"),
        ("cpu", {"seq_len": 512, "attention": "xla"}, False, "xla"),
        ("gpu", {"seq_len": 2048}, False, "cudnn"),
        ("gpu", {"seq_len": 2048}, True, "cudnn"),
        ("gpu", {"seq_len": 1024}, True, "cudnn"),
        ("gpu", {"seq_len": 1024, "position": "relative"}, False, "xla"),
        ("gpu", {"seq_len": 4096, "position": "relative"}, True, "blockwise"),
        ("tpu", WIDE | {"seq_len": 4096, "position": "relative"}, False, "blockwise"),
        ("tpu", WIDE, True, "splash"),
        ("tpu", WIDE | {"seq_len": 200}, False, "xla"),
        ("tpu", {"seq_len": 4096}, False, "blockwise"),
    ],
)
def test_what_a_backend_takes(monkeypatch, backend, changes, packed, expected):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert kernels.choose_kernel(shape(**changes), jnp.dtype(jnp.bfloat16), packed) == expected


LONG_ROPE = {"seq_len": 4096, "d_head": 64}


@pytest.mark.parametrize(
    ("target", "changes", "packed", "expected"),
    [
        (kernels.Target("gpu", (9, 0)), {"d_head": 256}, False, "cudnn"),
        (kernels.Target("gpu", (8, 0)), {"d_head": 256}, False, "blockwise"),
        (kernels.Target("gpu", (10, 0)), {"d_head": 256}, False, "blockwise"),
        (kernels.Target("gpu", (8, 0)), {}, True, "blockwise"),  # a mask of all pairs of 4,096 tokens
        (kernels.Target("gpu", (8, 0)), {"seq_len": 1024}, True, "cudnn"),
        (kernels.Target("gpu", (7, 5)), {}, False, "blockwise"),
        (kernels.Target("gpu", (0, 0)), {}, False, "blockwise"),
        (kernels.Target("gpu", (9, 0)), {"attention_softcap": 50.0}, False, "blockwise"),
        (kernels.Target("gpu", (9, 0)), {"attention_softcap": 50.0, "seq_len": 64}, False, "plain"),
        (kernels.Target("tpu", context=4), {"d_head": 128, "attention_softcap": 50.0}, True, "blockwise"),
        (kernels.Target("gpu", (12, 0)), {}, True, "cudnn"),
        (kernels.Target("gpu", (9, 0), context=4), {}, True, "cudnn"),
        (kernels.Target("gpu", (8, 0), context=4), {}, True, "blockwise"),
        (kernels.Target("gpu", (8, 0), context=4), {}, False, "cudnn"),
        (kernels.Target("gpu", (9, 0), context=4), {"window": 512}, False, "blockwise"),
        (kernels.Target("gpu", (9, 0), context=4), {"window": 512, "global_every": 2}, False, "cudnn"),
        (kernels.Target("gpu", (9, 0), context=4), {"seq_len": 64, "position": "relative"}, False, "blockwise"),
        (kernels.Target("tpu", context=4), {"d_head": 128}, True, "splash"),
        (kernels.Target("tpu", context=4), {"d_head": 128, "seq_len": 1536}, True, "blockwise"),
        (kernels.Target("cpu", context=4), {"seq_len": 64}, True, "blockwise"),
    ],
)
def test_what_a_chip_and_a_ring_take(target, changes, packed, expected):
    assert kernels.choose_kernel(shape(**LONG_ROPE | changes), jnp.dtype(jnp.bfloat16), packed, target) == expected


@pytest.mark.parametrize(
    ("backend", "changes", "message"),
    [
        ("cpu", {"attention": "cudnn"}, "it runs on a gpu, not on this cpu"),
        ("gpu", {"attention": "splash"}, "it runs on a tpu"),
        ("cpu", {"attention": "xla", "attention_softcap": 50.0}, "does not know model.attention_softcap; 'blockwise'"),
        ("gpu", {"attention": "cudnn", "d_head": 12}, "not bfloat16 and 12"),
        ("tpu", {"attention": "splash", "seq_len": 200}, "not 200 and 8"),
        (
            "gpu",
            {"attention": "cudnn", "position": "relative"},
            "does not support model.position='relative'; 'blockwise'",
        ),
        ("tpu", WIDE | {"attention": "splash", "position": "relative"}, "does not support model.position='relative'"),
    ],
)
def test_what_cannot_be_computed_here_is_refused_in_one_line(monkeypatch, backend, changes, message):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    with pytest.raises(BadInput, match=message) as refused:
        kernels.choose_kernel(shape(**changes), jnp.dtype(jnp.bfloat16))
    assert "\n" not in str(refused.value)


@pytest.mark.full
@pytest.mark.parametrize("name", one_in(2, ["causal", "documents in a window", "a layer without the window"]))
def test_splash_is_plain_forward_and_backward(name):
    """The kernel for TPUs, its blocks run one by one by an interpreter."""
    sight, window = SIGHTS[name]
    sight = sight._replace(segment_BS=None if sight.segment_BS is None else segments(256))
    given = arrays(256, width=128)
    splash = lambda q, k, v: kernels.splash_attention(q, k, v, Scoring(0.1, sight, window), interpret=True)  # noqa: E731
    expected = with_gradients(lambda q, k, v: kernels.plain_attention(q, k, v, Scoring(0.1, sight, window)), *given)
    for a, b in zip(expected, with_gradients(splash, *given), strict=True):
        np.testing.assert_allclose(b, a, atol=2e-5)


def test_the_model_lowers_to_splash_forward_and_backward(monkeypatch):
    """The program for a TPU, written on any machine."""
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    of = shape(**WIDE, n_kv_heads=1, attention="splash")
    params = jax.tree.map(lambda d: jax.ShapeDtypeStruct(d.shape, jnp.float32), transformer.parameter_declarations(of))

    def objective(params, part):
        return transformer.summed_loss(of, params, part[:, :-1], part[:, 1:], 0.0).objective

    tokens = jax.ShapeDtypeStruct((2, of.seq_len + 1), jnp.int32)
    program = jax.jit(jax.grad(objective)).trace(params, tokens).lower(lowering_platforms=("tpu",)).as_text()
    for kernel in ("splash_mha_fwd", "splash_mha_dq", "splash_mha_dkv"):
        assert kernel in program


def test_stages_of_a_pipeline_take_blocks_where_a_tpu_would_take_splash():
    """Found by compiling for one: jax wants to know what differs between stages, and the kernel doesn't say."""
    of = shape(**WIDE | {"seq_len": 2048})
    targets = [kernels.Target("tpu", staged=staged) for staged in (False, True)]
    alone, staged = (kernels.choose_kernel(of, jnp.dtype("bfloat16"), False, target) for target in targets)
    assert (alone, staged) == ("splash", "blockwise")
    with pytest.raises(BadInput, match=r"model.attention='splash': .* stages of a pipeline"):
        kernels.choose_kernel(shape(**WIDE, attention="splash"), jnp.dtype("bfloat16"), False, targets[1])
