"""Adafactor against Algorithms 4 to 6 in float64: factors over in and out as declared, and layer by layer."""

import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.config import Optim
from scalelab.model.declare import Declaration, named_leaves
from scalelab.optim import groups
from scalelab.optim.adafactor import ADAFACTOR
from tests.optim.frame import assert_follows, by_chain, clipped, decays, kept_bytes, problem, rates, setting
from tests.quick import one_in


def rms(x):
    return np.sqrt(np.mean(x**2))


def one_step(g, x, memory, t, factored=True, eps1=1e-30, eps2=1e-3, d=1.0):
    """Shazeer & Stern 2018, Alg. 4 for a matrix, Alg. 5 for a vector or where nothing is factored; without rho_t."""
    b2 = 1 - t**-0.8
    squares = g**2 + eps1
    if g.ndim == 2 and factored:
        r = memory["r"] = b2 * memory.get("r", 0.0) + (1 - b2) * squares @ np.ones(g.shape[1])
        c = memory["c"] = b2 * memory.get("c", 0.0) + (1 - b2) * np.ones(g.shape[0]) @ squares
        v = np.outer(r, c) / np.sum(r)
    else:
        v = memory["v"] = b2 * memory.get("v", 0.0) + (1 - b2) * squares
    u = g / np.sqrt(v)
    return max(eps2, rms(x)) * u / max(1, rms(u) / d)


def by_adafactor(h, declared, params, gradients, lrs, factored=True, beta1=0.0):
    memories, averages = {}, dict.fromkeys(params, 0.0)
    for t, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        gradient, new = clipped(gradient, h), {}
        for k, p in params.items():
            d = declared[k]
            shape = groups.matrix_shape(d) if d.ins else (p.shape[0] if d.stack else 1, -1)
            pairs = zip(gradient[k].reshape(shape), p.reshape(shape), strict=True)
            moves = [one_step(g, x, memories.setdefault((k, i), {}), t, factored) for i, (g, x) in enumerate(pairs)]
            lam = float(h.optim.weight_decay) if k in decays(declared) else 0.0
            averages[k] = beta1 * averages[k] + (1 - beta1) * np.stack(moves).reshape(p.shape)
            new[k] = p - lr * (averages[k] + lam * p)
        params = new
    return params


PALM = {"optim__factored": False, "optim__averaged": True}


@pytest.mark.parametrize(("decay", "more"), one_in(3, [(0.1, PALM), (0.0, {}), (0.1, {})]))
def test_thirty_steps_of_adafactor(decay, more):
    """By default, and as PaLM has it: second moments whole, and the updates averaged with beta1 = 0.9."""
    static, h = setting("adafactor", optim__weight_decay=decay, **more)
    declared, params, gradients = problem()
    params = params | {"final_norm.g": 1e-5 * params["final_norm.g"]}  # smaller than eps2
    gradients = [
        g | {"blocks.mlp.up.w": g["blocks.mlp.up.w"] * (1 + 9 * (i % 5 == 4))} for i, g in enumerate(gradients)
    ]
    form = {"factored": False, "beta1": 0.9} if more else {}
    # Some updates are clipped, most aren't.
    expected = by_adafactor(h, declared, params, gradients, rates(0.02), **form)
    assert_follows(expected, by_chain(static, h, params, gradients, rates(0.02))[0], params)


def test_zero_gradients_move_nothing():
    static, h = setting("adafactor")
    _, params, gradients = problem()
    after, _ = by_chain(static, h, params, [{k: 0 * g for k, g in gradients[0].items()}] * 2, [0.1, 0.1])
    for k, p in params.items():
        np.testing.assert_array_equal(after[k], np.float32(p))


def test_state_bytes():
    """Rows and columns of each layer: 0.005 bytes a parameter of a 1024 x 4096 matrix."""
    assert kept_bytes("adafactor") == kept_bytes("adafactor", stated=True)
    assert kept_bytes("adafactor", **PALM) == kept_bytes("adafactor", stated=True, **PALM)
    assert set(kept_bytes("adafactor", **PALM).values()) == {8 * d.size for d in problem()[0].values()}
    d = Declaration((1024, 4096), ("embed",), ("mlp",))
    assert ADAFACTOR.state_bytes(d, Optim()) / d.size == pytest.approx(0.005, rel=0.03)


def test_with_mup_half_the_exponent_is_in_the_parameters_size():
    static, _ = setting("adafactor", parametrization__name="mup", parametrization__base_width=4)
    by = named_leaves(groups.optimizer_scales(static.model, static.optim, ADAFACTOR))
    assert by["blocks.mlp.up.w"].lr == 0.5 and by["blocks.mlp.up.w"].decay == 2.0
    assert by["embed.w"].lr == by["final_norm.g"].lr == 1.0
    assert jnp.isfinite(by["head.w"].lr)
