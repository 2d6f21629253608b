"""Muon against Jordan's recurrence in float64, its two scales, and what Newton-Schulz does to singular values."""

import jax.numpy as jnp
import numpy as np
import pytest

from scalelab import config as config_lib
from scalelab.config import optimizer_defaults
from scalelab.configs import base
from scalelab.model.declare import Declaration, named_leaves
from scalelab.optim import groups
from scalelab.optim.muon import newton_schulz, update_factor
from scalelab.optim.registry import find_optimizer
from tests.optim.frame import assert_follows, by_chain, kept_bytes, problem, rates, setting
from tests.optim.hidden import by_matrix


def orthogonal(g):
    """Jordan 2024, `zeropower_via_newtonschulz5`, where the singular values are taken through the polynomial by
    themselves."""
    u, s, vt = np.linalg.svd(g, full_matrices=False)
    s = s / np.sqrt(np.sum(s**2))
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ vt


def by_muon(h, declared, params, gradients, lrs, nesterov=True, scale="spectral"):
    b = float(h.optim.beta1)

    def direction(g, memory, t, place):
        m = memory["m"] = b * memory.get("m", 0.0) + (1 - b) * g
        rows, columns = g.shape
        size = np.sqrt(max(1, columns / rows)) if scale == "spectral" else 0.2 * np.sqrt(max(rows, columns))
        return size * orthogonal(b * m + (1 - b) * g if nesterov else m)

    return by_matrix(h, declared, params, gradients, lrs, direction)


@pytest.mark.parametrize(
    ("arithmetic", "nesterov", "scale", "tolerance"),
    [
        ("fp32", True, "spectral", 1e-5),
        ("fp32", False, "rms", 1e-5),
        ("bf16", True, "spectral", 3e-2),  # eight bits of mantissa, five products deep
    ],
)
def test_thirty_steps_of_muon(arithmetic, nesterov, scale, tolerance):
    static, h = setting("muon", optim__newton_schulz=arithmetic, optim__nesterov=nesterov, optim__scale=scale)
    declared, params, gradients = problem()
    expected = by_muon(h, declared, params, gradients, rates(0.02), nesterov, scale)
    actual, _ = by_chain(static, h, params, gradients, rates(0.02))
    hidden = [k for k, d in declared.items() if d.is_hidden_matrix]
    assert_follows(expected, actual, {k: params[k] for k in hidden}, tolerance)
    assert_follows(expected, actual, {k: params[k] for k in params if k not in hidden})  # AdamW, not NAdamW


@pytest.mark.parametrize(("arithmetic", "slack"), [("fp32", 1e-5), ("bf16", 0.03)])
@pytest.mark.parametrize("shape", [(16, 48), (32, 32)], ids=str)
def test_singular_values_are_near_one(arithmetic, slack, shape):
    """[0.68, 1.21] is where the polynomial takes [0.003, 1], whatever the matrix's size; stacked ones don't mix."""
    random = np.random.default_rng(0)
    u, _, vt = np.linalg.svd(random.normal(size=(1, *shape)), full_matrices=False)
    s = np.geomspace(1, 0.02, shape[0]) * np.array([1e-4, 1, 1e4])[:, None]
    x = newton_schulz(jnp.asarray((u * s[:, None]) @ vt, jnp.float32), arithmetic)
    after = np.linalg.svd(np.float64(x), compute_uv=False)
    assert after.min() > 0.68 - slack and after.max() < 1.21 + slack
    np.testing.assert_allclose(x[0], x[1], atol=1e-4 + slack)  # nothing but the singular vectors counts: not the size


def test_zero_gradients_stay_zero():
    assert not newton_schulz(jnp.zeros((2, 4, 8)), "bf16").any()


def test_scales_by_name():
    wide, tall = Declaration((4, 2, 8), ("embed",), ("heads", "head_dim")), Declaration((16, 4), ("mlp",), ("embed",))
    assert [update_factor(d, "spectral") for d in (wide, tall)] == [2.0, 1.0]
    assert [update_factor(d, "rms") for d in (wide, tall)] == [0.8, 0.8]


def test_mups_rule_is_that_of_the_scale():
    """sqrt(out/in) is muP's own spectral norm; entries of a given size want LR / m_d, as Adam's do."""
    for scale, lr in (("spectral", 1.0), ("rms", 0.5)):
        static, _ = setting("muon", optim__scale=scale, parametrization__name="mup", parametrization__base_width=8)
        by = named_leaves(groups.optimizer_scales(static.model, static.optim, find_optimizer("muon")))
        assert by["blocks.mlp.up.w"].lr == lr and by["embed.w"].lr == by["head.w"].lr == 1.0


def test_state_bytes():
    assert kept_bytes("muon") == kept_bytes("muon", stated=True)


def test_the_rest_decays_by_its_own_learning_rate():
    """Closed form: without gradients a table shrinks by 1 - rest_lr x decay, a hidden matrix by 1 - LR x decay."""
    declared, params, gradients = problem()
    zeros = [{k: 0 * g for k, g in gradients[0].items()}]
    for shape, rest in (("constant", 1e-3), ("independent", 1e-2)):
        static, h = setting("muon", schedule__wd_shape=shape, optim__peak_lr=1e-2, optim__rest_lr=1e-3)
        after, _ = by_chain(static, h, params, zeros, [1e-2])
        for k in ("blocks.mlp.up.w", "head.w"):
            shrunk = 1 - 0.1 * (1e-2 if declared[k].is_hidden_matrix else rest)
            np.testing.assert_allclose(after[k], shrunk * params[k], rtol=1e-6)


def test_the_default_lr_is_that_of_the_scale():
    for given, lr in (("spectral", 0.02), ("rms", 3e-3), (None, 0.02)):
        values = {"optim.name": "muon"} | ({"optim.scale": given} if given else {})
        config = config_lib.resolve(config_lib.override(base.get_config(), values))
        assert config.optim.peak_lr == lr
        assert f"peak_lr={lr}" in optimizer_defaults.describe_optim_defaults(
            config.optim, config_lib.config_value_origins(config)
        )
