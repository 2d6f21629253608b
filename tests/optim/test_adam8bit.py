"""8-bit Adam against a float64 recurrence with a quantiser of its own: brute force over all 256 values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.model.declare import Declaration
from scalelab.optim import adam8bit
from tests.optim.frame import by_chain, clipped, decays, kept_bytes, problem, rates, setting


def dynamic_map(signed):
    """Dettmers 2016, section 2.3, as a tree of bits: a sign or none, zeros for the exponent, a one, the rest a linear
    fraction."""
    bits, codes = 7 if signed else 8, [0.0]
    for zeros in range(7):
        left = bits - zeros - 1
        parts = np.arange(2**left)
        codes += list(10.0**-zeros * (0.1 + 0.9 * (parts + 0.5) / 2**left))
    return np.sort(np.array(codes + [1.0] + ([-x for x in codes[1:]] if signed else [])))


@pytest.mark.parametrize("signed", [True, False])
def test_the_values_are_the_dynamic_trees(signed):
    table = adam8bit.code_values(signed)
    np.testing.assert_allclose(table, dynamic_map(signed), rtol=1e-6)
    assert table.shape == (256,) and np.all(np.diff(table) > 0)


def coded(x, layers, signed):
    """x after coding and decoding: nearest of the 256 in each block of 256 of a layer's numbers."""
    table, out = dynamic_map(signed), np.zeros((layers, x.size // layers))
    for row, numbers in zip(out, x.reshape(layers, -1), strict=True):
        for at in range(0, numbers.size, 256):
            block = numbers[at : at + 256]
            most = np.max(np.abs(block))
            nearest = np.argmin(np.abs(block[:, None] / (most or 1.0) - table), axis=1)
            row[at : at + 256] = table[nearest] * most
    return out.reshape(x.shape)


def oracle(h, declared, params, gradients, lrs, small):
    b1, b2, eps, decay = (float(getattr(h.optim, k)) for k in ("beta1", "beta2", "eps", "weight_decay"))
    m, v = ({k: np.zeros_like(p) for k, p in params.items()} for _ in range(2))
    for t, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        gradient, new = clipped(gradient, h), {}
        for k, p in params.items():
            m[k], v[k] = b1 * m[k] + (1 - b1) * gradient[k], b2 * v[k] + (1 - b2) * gradient[k] ** 2
            direction = m[k] / (1 - b1**t) / (np.sqrt(v[k] / (1 - b2**t)) + eps)
            new[k] = p - lr * (direction + (decay if k in decays(declared) else 0.0) * p)
            if k not in small:
                layers = declared[k].shape[0] if declared[k].stack else 1
                m[k], v[k] = coded(m[k], layers, True), coded(v[k], layers, False)
        params = new
    return params


def test_steps_are_the_recurrence_with_coded_moments(monkeypatch):
    """A value on the border of two codes may fall either way in fp32, so single numbers may differ by a code: most
    don't."""
    monkeypatch.setattr(adam8bit, "MIN_CODED_SIZE", 200)
    # Its own program: LEAST is no part of `static`.
    static, h = setting("adam8bit", optim__eps=1e-3, optim__clip_norm=0.99)
    declared, params, gradients = problem(0.3)
    gradients = gradients[:12]
    small = {k for k, d in declared.items() if d.size // (d.shape[0] if d.stack else 1) < 200}
    assert small and set(declared) - small
    lrs = rates(0.02)[:12]
    expected, exact = (oracle(h, declared, params, gradients, lrs, left) for left in (small, set(declared)))
    updated, _ = by_chain(static, h, params, gradients, lrs)
    for k in declared:
        size = np.linalg.norm(expected[k] - params[k])
        off = np.abs(np.float64(updated[k]) - expected[k])
        assert np.linalg.norm(off) / size < (2e-5 if k in small else 2e-3), k
        assert np.mean(off > 1e-5 * np.abs(expected[k] - params[k]) + 1e-6) < 0.02, k
        if k not in small:  # the codes are felt: fp32 moments would not pass
            assert np.linalg.norm(expected[k] - exact[k]) / size > 4e-3, k


def test_coding_is_as_fine_as_the_map_and_a_block_minds_itself_only():
    """The widest gap of the signed map is 0.9/64 of the largest, the unsigned's 0.9/128; an outlier spoils 255
    neighbours."""
    x = jax.random.normal(jax.random.key(0), (3, 1000))
    for signed, widest in ((True, 0.9 / 64), (False, 0.9 / 128)):
        y = x if signed else jnp.square(x)
        back = adam8bit.decode_moment(adam8bit.encode_moment(y, 1, signed), y.shape, signed)
        rows = np.pad(np.abs(y), [(0, 0), (0, 24)]).reshape(3, 4, 256)
        bound = np.repeat(rows.max(-1), 256, axis=1)[:, :1000] * widest * 0.51
        assert np.all(np.abs(back - y) <= bound)
    outlier = y.at[0, 0].set(1e6)
    again = adam8bit.decode_moment(adam8bit.encode_moment(outlier, 1, False), y.shape, False)
    assert np.array_equal(again[:, 256:], back[:, 256:]) and np.array_equal(again[1:], back[1:])
    assert np.all(np.asarray(adam8bit.decode_moment(adam8bit.encode_moment(0 * y, 1, False), y.shape, False)) == 0)


@pytest.mark.parametrize("signed", [True, False])
def test_it_begins_with_the_codes_of_zero(signed):
    d = Declaration((2, 3, 1500), ("embed",), ("mlp",), stack=("layers",))
    begun, made = adam8bit._zeros(d, signed), adam8bit.encode_moment(jnp.zeros(d.shape), 1, signed)
    jax.tree.map(np.testing.assert_array_equal, begun, made)
    assert jax.tree.map(lambda x: x.dtype, begun) == jax.tree.map(lambda x: x.dtype, made)
    assert not adam8bit.decode_moment(begun, d.shape, signed).any()


def test_it_keeps_two_bytes_a_number_and_small_tensors_in_full():
    large = {"model__d_model": 64, "model__vocab_size": 100}
    remaining = kept_bytes("adam8bit", **large)
    assert remaining == kept_bytes("adam8bit", stated=True, **large)
    assert remaining["embed.w"] == 6400 * (2 + 8 / 256) and remaining["final_norm.g"] == 64 * 8
    blocks = [k for k in remaining if k.startswith("blocks.") and remaining[k] == 2 * 4096 * (2 + 8 / 256)]
    assert "blocks.attention.q.w" in blocks
