"""Updating layer by layer: the ordinary step to rounding, decided before anything moves, in the memory of one layer."""

import dataclasses
import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checks.numerics.parallelism import side_loss
from scalelab.config import replace_hparams
from scalelab.errors import BadInput
from scalelab.jaxprs import matmul_flops
from scalelab.optim.registry import OPTIMIZERS, find_optimizer
from scalelab.plan.memory.held import gradient_bytes
from scalelab.plan.step.flops import count_flops
from scalelab.train.single import train_single
from scalelab.train.step.gradients import compute_gradients
from scalelab.train.step.step import train_step
from scalelab.train.step.update.per_layer.backward import measure_gradient
from scalelab.train.step.update.per_layer.refusals import refuse_unsupported
from scalelab.train.step.update.per_layer.update import update_layers
from scalelab.train.step.update.update import compute_updates
from tests.plan.tiny import tiny
from tests.train.step.test_step import assert_same, batches, init, setting

SEPARABLE = [name for name in OPTIMIZERS if not find_optimizer(name).curvature]
SIZES = {"model.n_layers": 3, "model.remat": "full", "optim.peak_lr": 1e-2, "optim.clip_norm": 0.5}


def both(**changes):
    """(static of the ordinary step, of the step layer by layer, hparams); the clip acts."""
    static, h = setting(**SIZES | changes)
    return static, dataclasses.replace(static, updates="per_layer"), h


def two_ways(static, layered, h):
    """Functions (params, opt_state, tokens) -> (loss, norm, params, opt_state) of an update, whole and by layer."""
    now = replace_hparams(h, {"step.lr": h.optim.peak_lr})

    def whole(params, opt_state, tokens):
        sums, grads = compute_gradients(static, params, tokens, h.train.z_loss)
        moves, opt_state = compute_updates(static, grads, opt_state, params, now, now.step.lr)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
        return sums.nll, norm, jax.tree.map(jnp.add, params, moves), opt_state

    def by_layer(params, opt_state, tokens):
        sums, kept = measure_gradient(layered, params, tokens, h.train.z_loss, None)
        updated = update_layers(layered, kept, now, jnp.int32(7), params, opt_state)
        return sums.nll, kept.norm, updated.params, updated.opt_state

    return whole, by_layer


def compare_updates(changes, steps=3, atol=2e-5):
    """Take the same steps both ways from one state; parameters, state, losses and norms agree to fp32's rounding."""
    static, layered, h = both(**changes)
    functions = [jax.jit(function) for function in two_ways(static, layered, h)]
    state = init(static, h)
    ours = [(state.params, state.opt_state)] * 2
    for tokens in batches(steps):
        results = [function(*of, tokens) for function, of in zip(functions, ours, strict=True)]
        ours = [(params, opt_state) for _, _, params, opt_state in results]
        np.testing.assert_allclose(*[jnp.stack(result[:2]) for result in results], rtol=2e-5)
    assert jax.tree.structure(ours[0]) == jax.tree.structure(ours[1])
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(ours[0]), jax.tree.leaves(ours[1]), strict=True):
        compare_leaf(jax.tree_util.keystr(path), one, other, atol)


def compare_leaf(name, one, other, atol):
    """Within 2e-3 and `atol`. Of SOAP's bases the signs are free; 8-bit GaLore keeps its projection in bf16."""
    rtol, projected = 2e-3, ".projection" in name and one.dtype == jnp.bfloat16
    one, other = np.float64(one), np.float64(other)
    if "_basis" in name:
        other = np.where(np.sum(one * other, axis=-2, keepdims=True) < 0, -other, other)
        atol = 2e-2  # eigenvectors of near eigenvalues: one fp32 rounding of the gradients, on one device, moves 8e-3
    if projected:
        rtol = 2**-7  # one unit in the last place
    np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.full
def test_galore_by_layer_is_galore():
    """Paired states, singular vectors, step counts and moments; a tied head, whose gradient has two parts."""
    compare_updates({"optim.name": "galore", "optim.rank": 4, "optim.every": 2, "model.tied_head": True})


@pytest.mark.full
def test_a_loss_of_blocks_is_differentiated_by_layer_too():
    """Both backwards; the router's matrix moves by this loss alone."""
    compare_updates({"model.block": side_loss.NAME})
    static, layered, h = both(**{"model.block": side_loss.NAME})
    params, tokens = init(static, h).params, batches()[0]
    sums, _ = jax.jit(compute_gradients, static_argnums=0)(static, params, tokens, h.train.z_loss)
    by_layer, _ = jax.jit(measure_gradient, static_argnums=0)(layered, params, tokens, h.train.z_loss, None)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), by_layer, sums)


@pytest.mark.full
def test_stacks_by_layer_are_themselves():
    """Each stack's layers with its own chain, under the name of its parameters; layers differ by number, too."""
    stacks = {"model.block": "parallel=1,sequential=2", "model.window": 8, "model.global_every": 2}
    compare_updates(stacks | {"optim.name": "adam8bit", "parametrization.name": "completep"})


# Above the gradients' entries, so that it isn't rounding that decides the sign by which Adam moves an entry near zero.
# One fp32 rounding of the gradients, on one device, moves parameters after three steps by 2e-6 at most (soap, 4 draws);
# at eps 1e-4 by 9e-5 to 3e-4 (soap), at the default by 1e-3 and the next norm by 1.8e-4 (galore8bit, 12 draws).
EPS = {"soap": 1e-2, "galore8bit": 1e-2}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEPARABLE)
def test_every_separable_optimizer_by_layer_is_itself(name):
    """One step of those whose later ones hang on the signs and the order of eigenvectors that rounding decides."""
    steps, atol = (1, 1e-3) if name in ("shampoo", "muon") else (3, 2e-5)
    changes = {"parametrization.name": "completep", "parametrization.base_width": 8}
    eps = {"optim.eps": EPS[name]} if name in EPS else {}
    compare_updates({"optim.name": name} | changes | eps, steps, atol)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"model.position": "learned", "model.bias": True},
        {"model.window": 8, "model.global_every": 2, "model.nope_every": 3},
        {"precision.name": "bf16"},
    ],
)
def test_models_by_layer(changes):
    compare_updates({"optim.name": "sgd"} | changes)


@functools.cache
def compiled_steps():
    """(the ordinary step, the step by layer, a state, hparams) of a model whose parameters are in its blocks."""
    changes = {
        "optim.name": "sgd",
        "model.n_layers": 16,
        "model.d_model": 64,
        "train.global_batch": 1,
        "guard.policy": "off",
    }
    static, layered, h = both(**changes)
    state, tokens = init(static, h), jax.ShapeDtypeStruct((1, 17), jnp.int32)
    lowered = [jax.jit(functools.partial(train_step, one)).lower(state, tokens, h) for one in (static, layered)]
    return *[one.compile() for one in lowered], state, h


@pytest.mark.full
def test_the_compiled_step_is_without_the_gradients_of_all_layers():
    """Temporaries fall by nearly the bytes of the blocks' gradients, and the metrics are the same."""
    whole, by_layer, state, h = compiled_steps()
    blocks = 4 * sum(x.size for x in jax.tree.leaves(state.params["blocks"]))
    temporaries = [step.memory_analysis().temp_size_in_bytes for step in (whole, by_layer)]
    assert temporaries[0] > 2 * blocks and temporaries[0] - temporaries[1] > 0.9 * blocks
    (expected, plain), (after, metrics) = (step(state, batches(1)[0, :1], h) for step in (whole, by_layer))
    for name in ("train_loss", "grad_norm", "update_norm", "param_norm", "clip_ratio"):
        np.testing.assert_allclose(metrics[name], plain[name], rtol=1e-5)
    for one, other in zip(jax.tree.leaves(after.params), jax.tree.leaves(expected.params), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.full
def test_a_step_that_is_not_finite_moves_no_layer():
    """The first backward knows the norm of the whole gradient before the second moves anything."""
    _, by_layer, state, h = compiled_steps()
    broken = state._replace(params=state.params | {"embed": {"w": state.params["embed"]["w"] * jnp.inf}})
    after, metrics = by_layer(broken, batches(1)[0, :1], h)
    assert_same((after.params, after.opt_state), (broken.params, broken.opt_state))
    assert (after.step, after.skipped, after.streak) == (1, 1, 1) and np.isnan(metrics["clip_ratio"])


def test_the_planner_counts_what_runs():
    """FLOPs of the products, walked through both backwards, and the gradients that exist at once."""
    static, layered, h = both(**{"optim.name": "sgd", "model.attention": "plain"})
    like, tokens = jax.eval_shape(lambda: init(static, h)), jax.ShapeDtypeStruct((8, 17), jnp.int32)
    for one, function in zip((static, layered), two_ways(static, layered, h), strict=True):
        walked = matmul_flops(jax.make_jaxpr(function)(like.params, like.opt_state, tokens).jaxpr)
        assert count_flops(one).remat_per_token["exact"] == pytest.approx(walked / (8 * 16), rel=1e-12)
    largest = max(sum(x.size for x in jax.tree.leaves(like.params["blocks"])) // 3, 32 * 16)
    assert gradient_bytes(layered) == 4 * largest < gradient_bytes(static) / 2


@pytest.mark.slow
def test_a_run_that_goes_on_ends_with_the_same_bits_and_may_change_its_way(tmp_path):
    config = tiny(**{"model.remat": "full", "train.updates": "per_layer", "optim.name": "adamw", "train.steps": 6,
                     "eval.every_steps": 6, "checkpoint.every_steps": 3})  # fmt: skip
    asked = iter([False, True])
    straight = train_single(config, tmp_path / "straight")
    first = train_single(config, tmp_path / "stopped", stop=lambda: next(asked, True))
    assert first["status"] == "stopped" and first["final_step"] < 6
    shutil.copytree(tmp_path / "stopped", tmp_path / "other")
    assert train_single(config, tmp_path / "stopped")["params_digest"] == straight["params_digest"]
    whole = config.copy_and_resolve_references()
    whole.train.updates = "whole"
    assert train_single(whole, tmp_path / "other")["val_loss"] == pytest.approx(straight["val_loss"], rel=1e-5)


REFUSED = {
    "train.accumulate": 2,
    "model.remat": "none",
    "precision.name": "fp16",
    "log.layers_every": 1,
    "optim.clip": "zclip",
    "optim.name": "sophia_g",
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_has_no_place_is_refused_by_name(key):
    with pytest.raises(BadInput, match=rf"train\.updates='per_layer'.*{key}.*nearest: "):
        refuse_unsupported(both(**{key: REFUSED[key]})[1])
