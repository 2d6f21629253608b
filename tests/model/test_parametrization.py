"""muP: its table in closed form, equality with SP at the base width, and a coordinate check over widths."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from scalelab.model import parametrization, transformer
from scalelab.optim.chain import adamw
from scalelab.precision.policy import FP32
from tests.model.shapes import PRESETS, distance, loss_and_grads, random_params, shape, tokens


def by_name(tree):
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): x
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }


def test_learning_rates_are_the_adam_column_of_table_8():
    """Yang et al. 2022, Table 8, at four times the base width: hidden matrices / 4, everything else as it was."""
    of = shape("gpt2", "mup", d_model=256, tied_head=False)
    for name, multiplier in by_name(parametrization.lr_multipliers(of)).items():
        hidden = name.startswith("blocks") and name.endswith(".w")
        assert multiplier == (0.25 if hidden else 1.0), name
    assert set(by_name(parametrization.lr_multipliers(shape("chinchilla", d_model=256))).values()) == {1.0}


def test_every_matrix_of_transformer_xl_is_hidden_but_its_vectors_are_not():
    slowed = {
        n for n, m in by_name(parametrization.lr_multipliers(shape("chinchilla", "mup", d_model=256))).items() if m < 1
    }
    assert slowed == {f"blocks.attention.{x}.w" for x in "qkvor"} | {"blocks.mlp.up.w", "blocks.mlp.down.w"}


@pytest.mark.parametrize("preset", PRESETS)
def test_forward_of_mup_is_that_of_sp_with_a_colder_head_and_attention(preset):
    """At four times the base width: logits / 4 for tied and untied heads, scores / sqrt(4) more than 1/sqrt(d_head)."""
    sp = shape(preset, d_model=256, n_layers=1)
    mup = shape(preset, "mup", d_model=256, n_layers=1)
    assert transformer.declarations(sp) == transformer.declarations(mup)
    params, batch = random_params(sp, noise=0.02), tokens(sp)[:, :-1]
    attention = params["blocks"]["attention"]
    half = {
        part: jax.tree.map(lambda w: w / 2, attention[part])
        for part in ("q", "content_bias", "position_bias")
        if part in attention
    }
    colder = params | {"blocks": params["blocks"] | {"attention": attention | half}}
    logits = jax.jit(transformer.logits, static_argnums=0)
    assert distance(logits(mup, params, batch), logits(sp, colder, batch) / 4) < 1e-5


def test_at_the_base_width_mup_is_sp():
    sp, mup = (shape(parametrization=name, base_width=32) for name in ("sp", "mup"))
    params, batch = random_params(sp, noise=0.1), tokens(sp)
    (loss, grads), (mup_loss, mup_grads) = (loss_and_grads(of, params, batch) for of in (sp, mup))
    assert loss == mup_loss
    assert distance(mup_grads, grads) < 1e-7
    assert parametrization.lr_multipliers(sp) == parametrization.lr_multipliers(mup)


def test_what_decays():
    gpt2 = by_name(parametrization.decay_mask(shape("gpt2")))
    assert {name for name, decays in gpt2.items() if decays} == {n for n in gpt2 if n.endswith(".w")}
    assert {n.split(".")[-1] for n, decays in gpt2.items() if not decays} == {"g", "b"}
    chinchilla = by_name(parametrization.decay_mask(shape("chinchilla")))
    assert not chinchilla["blocks.attention.content_bias"]
    assert not chinchilla["blocks.attention.position_bias"]
    assert chinchilla["embed.w"]


WIDTHS = (32, 96, 256)
STEPS = 4
ADAM = {"clip_norm": 1e9, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0}


@functools.cache
def trajectory(name: str, width: int):
    """(shape, a compiled function (parameters, LR) -> (hidden states, logits) at each of a few Adam steps)."""
    of = shape(parametrization=name, base_width=32, d_model=width, n_layers=1, remat="none", d_ff=2 * width)
    batch, multipliers = tokens(of, batch=4), parametrization.lr_multipliers(of)
    no_decay = jax.tree.map(lambda _: False, multipliers)

    def summed_loss(params):
        x_BSD, head_DV = transformer.Transformer(of, FP32).apply({"params": params}, batch[:, :-1])
        logits = x_BSD @ head_DV
        loss = -jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(logits), batch[:, 1:, None], -1))
        return loss, (x_BSD / transformer.head_multiplier(of), logits)

    @jax.jit
    def run(params, lr):
        chain = adamw(ADAM, lr, multipliers, no_decay)

        def step(carry, _):
            params, state = carry
            gradient, seen = jax.grad(summed_loss, has_aux=True)(params)
            updates, state = chain.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), seen

        return jax.lax.scan(step, (params, chain.init(params)), length=STEPS + 1)[1]

    return of, run


def slope(name: str, what: int, init_std: float, lr: float) -> float:
    """Log-log slope over widths of the mean |change| of hidden states (0) or logits (1) from the initialisation."""
    changes = []
    for width in WIDTHS:
        of, run = trajectory(name, width)
        seen = run(random_params(dataclasses.replace(of, init_std=init_std), noise=0), jnp.float32(lr))[what]
        changes.append(jnp.mean(jnp.abs(seen[-1] - seen[0])))
    return float(np.polyfit(np.log(WIDTHS), np.log(changes), 1)[0])


@pytest.mark.parametrize(("what", "init_std", "lr"), [(1, 0.02, 1e-2), (0, 0.5, 1e-3)], ids=["logits", "hidden states"])
def test_coordinate_check(what, init_std, lr):
    """Yang et al. 2022, section 5 and appendix D: steps of one LR move them alike at every width, but not under sp.

    Logits show what the head's multiplier does. Hidden states show what the LR of hidden matrices does, as long as the
    embedding, whose LR is the same at every width, barely moves: hence a large one and a small LR.
    """
    assert abs(slope("mup", what, init_std, lr)) < 0.2
    assert slope("sp", what, init_std, lr) > 0.4
