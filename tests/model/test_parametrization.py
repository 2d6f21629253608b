"""muP and CompleteP: tables in closed form, equality with standard at the base, a coordinate check over widths."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scalelab.model import layers, transformer
from scalelab.optim import parametrization
from tests.model.shapes import PRESETS, distance, loss_and_grads, random_params, shape, tokens
from tests.quick import one_in


def by_name(tree):
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): x
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }


# Yang et al. 2022, exponents of the width: variance of initialisation, multiplier, LR under SGD and under Adam. A fan
# is 1 in width where it is finite: the fan-in of input weights and biases, the fan-out of output weights.
TABLES = {
    3: {"input": (0, 0, 1, 0), "output": (-2, 0, -1, -1), "hidden": (-1, 0, 0, -1)},
    8: {"input": (0, 0, 1, 0), "output": (0, -1, 1, 0), "hidden": (-1, 0, 0, -1)},
    9: {"input": (-1, 0.5, 0, -0.5), "output": (-1, -0.5, 0, -0.5), "hidden": (-1, 0, 0, -1)},
}


def kind(name: str) -> str:
    """Which column of the tables a parameter of ours is in."""
    if name == "head.w":
        return "output"
    hidden = name.startswith("blocks") and name.endswith(".w")
    return "hidden" if hidden else "input"


def exponents(of_width, parametrization_name="mup", **changes):
    """{parameter: exponent of the width}, from two shapes that differ in it fourfold; `of_width(shape)` is a tree."""
    narrow, wide = (
        by_name(of_width(shape("gpt2", parametrization_name, d_model=d, tied_head=False, **changes))) for d in (64, 256)
    )
    return {name: math.log(wide[name] / narrow[name], 4) for name in narrow}


def multiplier(of):
    """Every parameter's forward multiplier: the head's."""
    tree = jax.tree.map(lambda _: 1.0, transformer.parameter_declarations(of))
    return tree | {"head": {"w": layers.head_multiplier(of)}}


@pytest.mark.parametrize("table", TABLES)
def test_mup_is_tables_3_8_and_9(table):
    """Lemma J.1: multiplier x t, std / t, SGD's LR / t^2, Adam's LR / t train one function; table 8 is at t = 1."""
    init = exponents(lambda of: jax.tree.map(lambda d: d.std or 1.0, transformer.parameter_declarations(of)))
    forward = exponents(multiplier)
    sgd = exponents(lambda of: jax.tree.map(lambda s: s.lr, parametrization.parameter_scales(of, "sgd")))
    adam = exponents(lambda of: jax.tree.map(lambda s: s.lr, parametrization.parameter_scales(of, "adam")))
    assert {kind(name) for name in init} == set(TABLES[table])
    for name in init:
        variance, times, lr_sgd, lr_adam = TABLES[table][kind(name)]
        t = times - forward[name]
        ours = (2 * init[name] - 2 * t, forward[name] + t, sgd[name] - 2 * t, adam[name] - t)
        if kind(name) == "input" and init[name] == 0 and name.endswith((".g", ".b")):
            ours = (variance, *ours[1:])  # constants: gains 1, biases 0
        np.testing.assert_allclose(ours, (variance, times, lr_sgd, lr_adam), atol=1e-9, err_msg=name)


# Dey et al. 2025, Table 1 at alpha = 1, AdamW: exponents of (m_d, m_L) of LR, decay and eps.
COMPLETEP = {
    "embeddings, head, final norm": ((0, 0), (0, 0), (-1, 0)),
    "gains and biases in blocks": ((0, 0), (0, 0), (-1, -1)),
    "hidden matrices": ((-1, 0), (1, 0), (-1, -1)),
}


@pytest.mark.parametrize(("m_d", "m_L"), [(4, 1), (1, 8), (4, 3)])
def test_completep_is_table_1(m_d, m_L):
    of = shape("gpt2", "completep", base_width=16, base_layers=2, d_model=16 * m_d, n_layers=2 * m_L, tied_head=False)
    for name, actual in by_name(parametrization.parameter_scales(of, "adam")).items():
        group = "hidden matrices" if kind(name) == "hidden" else "gains and biases in blocks"
        row = COMPLETEP[group if name.startswith("blocks") else "embeddings, head, final norm"]
        expected = [m_d**width * m_L**depth for width, depth in row]
        np.testing.assert_allclose((actual.lr, actual.decay, actual.eps), expected, err_msg=name)
    assert layers.branch_multiplier(of) == pytest.approx(1 / m_L)
    assert layers.head_multiplier(of) == pytest.approx(1 / m_d)


def test_in_a_deeper_completep_each_branch_counts_less():
    """At twice the base's depth every block adds half as much: o and down (and their biases) at half their size."""
    of = shape("gpt2", "completep", base_width=32, base_layers=1)
    plain = dataclasses.replace(of, parametrization="standard")
    params, batch = random_params(of), tokens(of)[:, :-1]
    blocks = params["blocks"]
    halved = blocks | {
        part: blocks[part] | {last: jax.tree.map(lambda w: w / 2, blocks[part][last])}
        for part, last in (("attention", "o"), ("mlp", "down"))
    }
    logits = jax.jit(transformer.next_token_logits, static_argnums=0)
    assert distance(logits(of, params, batch), logits(plain, params | {"blocks": halved}, batch)) < 1e-5
    assert distance(logits(of, params, batch), logits(plain, params, batch)) > 0.01


@pytest.mark.parametrize("like", ["adam", "sgd", "spectral"])
def test_learning_rate_times_decay_is_the_same_for_all(like):
    for name in ("mup", "completep"):
        actual = jax.tree.leaves(parametrization.parameter_scales(shape("llama", name, d_model=256, n_layers=6), like))
        np.testing.assert_allclose([s.lr * s.decay for s in actual], 1)
        assert like != "spectral" or set(actual) == {parametrization.ParameterScales()}


def gradient_sizes(n_layers: int):
    """RMS of every parameter's gradient under completep."""
    of = shape("llama", "completep", base_width=32, base_layers=2, n_layers=n_layers, init_std=0.5)
    _, grads = loss_and_grads(of, random_params(of, noise=0), tokens(of, batch=8))
    return of, by_name(jax.tree.map(lambda g: jnp.sqrt(jnp.mean(g * g)), grads))


@pytest.mark.slow
def test_how_gradients_shrink_with_depth_is_what_eps_and_the_column_for_sgd_follow():
    """Measured from 16 to 64 layers: to a quarter in blocks, and not outside."""
    (shallow, before), (deep, after) = gradient_sizes(16), gradient_sizes(64)
    for name in after:
        measured = float(after[name] / before[name])
        eps, sgd = (
            [by_name(parametrization.parameter_scales(of, like))[name] for of in (deep, shallow)]
            for like in ("adam", "sgd")
        )
        assert measured == pytest.approx(eps[0].eps / eps[1].eps, rel=0.3), name
        assert measured == pytest.approx(sgd[1].lr / sgd[0].lr, rel=0.3), name


def test_every_matrix_of_transformer_xl_is_hidden_but_its_vectors_are_not():
    slowed = {
        n
        for n, s in by_name(parametrization.parameter_scales(shape("chinchilla", "mup", d_model=256), "adam")).items()
        if s.lr < 1
    }
    assert slowed == {f"blocks.attention.{x}.w" for x in "qkvor"} | {"blocks.mlp.up.w", "blocks.mlp.down.w"}
    assert set(by_name(parametrization.parameter_scales(shape("chinchilla", d_model=256), "adam")).values()) == {
        parametrization.ParameterScales()
    }


@pytest.mark.parametrize("preset", one_in(3, PRESETS))
def test_forward_of_mup_is_that_of_standard_with_a_colder_head_and_attention(preset):
    """At four times the base width: logits / 4 for tied and untied heads, scores / sqrt(4) more than 1/sqrt(d_head)."""
    plain = shape(preset, d_model=256, n_layers=1)
    mup = shape(preset, "mup", d_model=256, n_layers=1)
    assert transformer.parameter_declarations(plain) == transformer.parameter_declarations(mup)
    params, batch = random_params(plain, noise=0.02), tokens(plain)[:, :-1]
    attention = params["blocks"]["attention"]
    half = {
        part: jax.tree.map(lambda w: w / 2, attention[part])
        for part in ("q", "content_bias", "position_bias")
        if part in attention
    }
    colder = params | {"blocks": params["blocks"] | {"attention": attention | half}}
    logits = jax.jit(transformer.next_token_logits, static_argnums=0)
    assert distance(logits(mup, params, batch), logits(plain, colder, batch) / 4) < 1e-5


@pytest.mark.parametrize("name", one_in(3, ["mup", "completep"]))
@pytest.mark.parametrize("like", one_in(3, ["adam", "sgd", "spectral"]))
def test_at_the_base_all_are_standard(name, like):
    plain, base = (shape(parametrization=n, base_width=32, base_layers=2) for n in ("standard", name))
    assert parametrization.parameter_scales(plain, like) == parametrization.parameter_scales(base, like)
    assert set(jax.tree.leaves(parametrization.parameter_scales(base, like))) == {parametrization.ParameterScales()}
    params, batch = random_params(plain, noise=0.1), tokens(plain)
    (loss, grads), (base_loss, base_grads) = (loss_and_grads(of, params, batch) for of in (plain, base))
    assert loss == base_loss
    assert distance(base_grads, grads) < 1e-7
