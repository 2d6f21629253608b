"""muP: its table in closed form, equality with SP at the base width, and a coordinate check over widths."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from scalelab.model import parametrization, transformer
from scalelab.optim.chain import adamw
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


def logit_change(parametrization_name: str, width: int) -> float:
    """Mean |change of the logits| after a few Adam steps at one LR, from an initialisation at the base width of 32."""
    of = shape(
        parametrization=parametrization_name, base_width=32, d_model=width, n_layers=1, remat="none",
        d_ff=2 * width,
    )  # fmt: skip
    batch, multipliers = tokens(of, batch=4), parametrization.lr_multipliers(of)
    h = {"clip_norm": 1e9, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0}
    chain = adamw(h, 1e-2, multipliers, jax.tree.map(lambda _: False, multipliers))

    def summed_loss(params):
        logits = transformer.logits(of, params, batch[:, :-1])
        return -jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(logits), batch[:, 1:, None], -1)), logits

    def step(carry, _):
        params, state = carry
        gradient, logits = jax.grad(summed_loss, has_aux=True)(params)
        updates, state = chain.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), logits

    start = random_params(of, noise=0)
    logits = jax.jit(lambda start: jax.lax.scan(step, (start, chain.init(start)), length=STEPS + 1)[1])(start)
    return float(jnp.mean(jnp.abs(logits[-1] - logits[0])))


def test_coordinate_check():
    """Yang et al. 2022, section 5 and appendix D: steps of one LR move the logits alike at every width, but not under sp."""
    slopes = {}
    for name in ("sp", "mup"):
        changes = [logit_change(name, width) for width in WIDTHS]
        slopes[name] = np.polyfit(np.log(WIDTHS), np.log(changes), 1)[0]
    assert abs(slopes["mup"]) < 0.2, slopes
    assert slopes["sp"] > 0.4, slopes
