"""Sophia against Alg. 3 in float64; its two estimates against exact diagonals; and when the step measures them."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from scalelab import config as config_lib
from scalelab.config import override
from scalelab.configs import tiny
from scalelab.errors import BadInput
from scalelab.model import transformer
from scalelab.model.attention.documents import Batch
from scalelab.model.declare import named_leaves
from scalelab.optim.chain import build_optimizer_chain
from scalelab.parallel import rules
from scalelab.parallel.mesh import resolve_layout
from scalelab.train.step import state
from scalelab.train.step.step import train_step
from scalelab.train.step.update import curvature
from tests.optim.frame import STEPS, assert_follows, by_chain, clipped, decays, nested, problem, rates, setting

TINY = {
    "model.d_model": 4, "model.n_layers": 1, "model.n_heads": 2, "model.vocab_size": 6, "model.seq_len": 4,
    "model.d_ff": 4, "train.global_batch": 4, "optim.every": 3,
}  # fmt: skip


def alg_3(h, declared, params, gradients, lrs, estimates, every):
    """Liu et al. 2023, Alg. 3, where t mod k = 1 are our steps 0, k, 2 k …"""
    b1, b2, rho, eps = (float(getattr(h.optim, k)) for k in ("beta1", "beta2", "rho", "eps"))
    m, hessian = dict.fromkeys(params, 0.0), dict.fromkeys(params, 0.0)
    for t, (gradient, lr) in enumerate(zip(gradients, lrs, strict=True), start=1):
        gradient, new = clipped(gradient, h), {}
        for k, p in params.items():
            m[k] = b1 * m[k] + (1 - b1) * gradient[k]
            if t % every == 1:
                hessian[k] = b2 * hessian[k] + (1 - b2) * estimates[t - 1][k]
            p = p - lr * (float(h.optim.weight_decay) if k in decays(declared) else 0.0) * p
            new[k] = p - lr * np.clip(m[k] / np.maximum(rho * hessian[k], eps), -1.0, 1.0)
        params = new
    return params


def test_thirty_steps_are_the_papers():
    static, h = setting("sophia_g", optim__rho=3.0)
    declared, params, gradients = problem(0.3)
    estimates = [{k: np.square(g) + 0.1 * g for k, g in each.items()} for each in gradients[::-1]]  # some negative
    expected = alg_3(h, declared, params, gradients, rates(0.02), estimates, 10)
    trees = nested({k: np.stack([e[k] for e in estimates]) for k in params})
    fresh = jnp.arange(STEPS) % 10 == 0
    actual, _ = by_chain(static, h, params, gradients, rates(0.02), {"curvature": (trees, fresh)})
    assert_follows(expected, actual, params)


@pytest.mark.full
def test_curvature_is_scaled_as_the_gradient_it_comes_from_where_eps_is():
    """CompleteP takes an eps that much smaller; the ratio of gradient and curvature must stay."""
    wide = {"parametrization__name": "completep", "parametrization__base_width": 4, "parametrization__base_layers": 1}
    static, h = setting("sophia_g", optim__rho=3.0, optim__eps=1e-30, optim__weight_decay=0.0, **wide)
    _, params, gradients = problem(0.01)
    tree, squares = nested(gradients[0]), nested({k: 1 + g**2 for k, g in gradients[0].items()})
    transform = build_optimizer_chain(static, h, 1.0)
    moves, _ = transform.update(tree, transform.init(nested(params)), nested(params), curvature=(squares, True))
    plain = 0.04 * gradients[0]["embed.w"] / (3.0 * 0.01 * (1 + gradients[0]["embed.w"] ** 2))
    np.testing.assert_allclose(named_leaves(moves)["embed.w"], -plain, rtol=1e-5)


def little(name="sophia_h", **changes):
    return config_lib.resolve(override(tiny.get_config(), TINY | {"optim.name": name, "optim.peak_lr": None} | changes))


@pytest.fixture(scope="module")
def model():
    """(static, params, tokens) of a model of a few hundred parameters, with some positions that don't count."""
    made = config_lib.static(little())
    params = jax.tree.map(lambda x: 3 * x, transformer.init_params(made.model, jax.random.key(1)))
    tokens = np.random.default_rng(0).integers(0, 6, (4, 5)).astype(np.int32)
    tokens[1, 3:] = -1
    return made, params, jnp.asarray(tokens)


def written_out(made, params, tokens):
    """(logits at the positions that count [n, V] as a function of flat parameters, the flat parameters, targets
    [n])."""
    flat, unravel = ravel_pytree(params)
    counts = np.asarray(tokens[:, 1:] >= 0)
    of = lambda flat: transformer.next_token_logits(made.model, unravel(flat), jnp.maximum(tokens[:, :-1], 0))[counts]  # noqa: E731
    return of, flat, np.asarray(tokens[:, 1:])[counts]


def draws(made, params, tokens, kind, n):
    def one(step):
        return ravel_pytree(curvature.estimate_curvature(made, kind, params, Batch(tokens), step, jnp.uint32(0)))[0]

    return np.float64(jax.jit(lambda steps: jax.lax.map(one, steps, batch_size=500))(jnp.arange(n)))


@pytest.mark.slow
def test_hutchinsons_mean_is_the_hessians_diagonal(model):
    """The mean of n probes of N(0, 1) misses entry i by sqrt((H_ii^2 + sum_j H_ij^2) / n), as the closed form has
    it."""
    of, flat, targets = written_out(*model)
    loss = lambda flat: -jnp.mean(jax.nn.log_softmax(of(flat))[np.arange(targets.size), targets])  # noqa: E731
    exact = np.float64(jax.jit(jax.jacrev(jax.grad(loss)))(flat))
    estimates = draws(*model, "hutchinson", 4000)
    spread = np.sqrt((np.diag(exact) ** 2 + np.sum(exact**2, axis=1)) / 4000)
    off = (estimates.mean(0) - np.diag(exact))[spread > 1e-6] / spread[spread > 1e-6]
    assert 0.7 < np.sqrt(np.mean(off**2)) < 1.4
    assert np.linalg.norm(estimates.mean(0) - np.diag(exact)) < 0.2 * np.linalg.norm(np.diag(exact))


@pytest.mark.slow
def test_bartletts_mean_is_the_gauss_newton_diagonal(model):
    """J' (diag p - p p') J, averaged over tokens, with J the logits' Jacobian."""
    of, flat, targets = written_out(*model)
    jacobian, p = np.float64(jax.jit(jax.jacrev(of))(flat)), np.float64(jax.nn.softmax(of(flat)))
    mean = np.einsum("tv,tvi->ti", p, jacobian)
    exact = (np.einsum("tv,tvi->i", p, jacobian**2) - np.sum(mean**2, axis=0)) / targets.size
    estimates = draws(*model, "gauss_newton", 4000)
    error = estimates.std(0) / np.sqrt(4000)
    off = (estimates.mean(0) - exact)[error > 1e-6] / error[error > 1e-6]
    assert 0.7 < np.sqrt(np.mean(off**2)) < 1.4
    assert np.linalg.norm(estimates.mean(0) - exact) < 0.1 * np.linalg.norm(exact)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hutchinson", "gauss_newton"])
def test_micro_batches_measure_the_same(model, kind):
    made, params, tokens = model
    parts = dataclasses.replace(made, accumulate=2)
    whole, added = (
        curvature.estimate_curvature(s, kind, params, Batch(tokens), jnp.int32(3), jnp.uint32(5)) for s in (made, parts)
    )
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(added), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5 * np.abs(b).max())


@pytest.mark.slow
def test_the_step_measures_every_so_many_steps_and_keeps_what_it_had_in_between(model):
    made, h = config_lib.static(little()), jax.tree.map(jnp.float32, config_lib.hparams(little()))
    step = jax.jit(lambda s: train_step(made, s, model[2], h)[0])
    now, seen = state.init_state(made, h), []
    for _ in range(5):
        before, now = now, step(now)
        old, new = (ravel_pytree(_sophia(s))[0] for s in (before, now))
        seen.append(bool(np.any(old != new)))
        if seen[-1]:
            batch = Batch(model[2])
            fresh = curvature.estimate_curvature(made, "hutchinson", before.params, batch, before.step, h.train.seed)
            np.testing.assert_allclose(new, 0.99 * old + 0.01 * ravel_pytree(fresh)[0], rtol=1e-3, atol=1e-7)
    assert seen == [True, False, False, True, False]


def _sophia(s):
    (estimate,) = [
        part.h for part in jax.tree.leaves(s.opt_state, is_leaf=lambda x: hasattr(x, "h")) if hasattr(part, "h")
    ]
    return estimate


@pytest.mark.parametrize("axis", ["stage", "context"])
def test_what_it_cannot_measure_is_refused_in_a_line(axis):
    made = little("sophia_g", **{f"parallel.{axis}": 2, "model.n_layers": 2})
    with pytest.raises(BadInput, match=rf"'sophia_g' with parallel.{axis}=2: .* nearest: parallel.{axis}=1"):
        rules.check_layout(config_lib.static(made), resolve_layout(config_lib.static(made).layout, 2))


def outside_loops(program: str) -> int:
    """Matrix products of a compiled program that no loop holds: of its entry, and of what that calls."""
    bodies = dict(re.findall(r"^(?:ENTRY )?%?([\w.\-]+) [^\n]*\{\n(.*?)^\}", program, re.M | re.S))
    seen, left = set(), [re.search(r"^ENTRY %?([\w.\-]+)", program, re.M)[1]]
    while left:
        seen.add(name := left.pop())
        called = re.findall(r"(?:calls|to_apply|called_computations=\{)=?%?([\w.\-]+)", bodies[name])
        left += [other for other in called if other in bodies and other not in seen]
    return sum(len(re.findall(r" dot\(|__onednn\$matmul|EigenMatMul", bodies[name])) for name in seen)


@pytest.mark.slow
def test_what_is_not_due_is_not_computed():
    """An estimate that doesn't depend on the turn of its loop would be taken out of it, and measured at every step."""
    actual = {}
    for name in ("adamw", "sophia_h"):
        fixed, h = setting(name)
        like = jax.eval_shape(lambda fixed=fixed, h=h: state.init_state(fixed, h))
        tokens = jax.ShapeDtypeStruct((fixed.global_batch, fixed.model.seq_len + 1), np.int32)
        compiled = jax.jit(train_step, static_argnums=0).lower(fixed, like, tokens, h).compile()
        actual[name] = outside_loops(compiled.as_text())
    assert actual["adamw"] > 10 and set(actual.values()) == {actual["adamw"]}, actual


MESH = """
import dataclasses, json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from scalelab.config import static
from scalelab.model import transformer
from scalelab.model.attention.documents import Batch
from scalelab.parallel import mesh as mesh_lib, rules
from scalelab.sharding import BATCH_AXES
from scalelab.train.step.update import curvature
from tests.optim.test_sophia import little

made = static(little(**{"model.d_model": 8, "model.vocab_size": 16, "model.seq_len": 8, "train.global_batch": 4}))
params = transformer.init_params(made.model, jax.random.key(1))
tokens = np.random.default_rng(0).integers(0, 16, (4, 9)).astype(np.int32)
apart = {}
for kind in ("hutchinson", "gauss_newton"):
    def measured(of):
        return jax.jit(lambda p, t: curvature.estimate_curvature(of, kind, p, Batch(t), jnp.int32(3), jnp.uint32(5)))
    one = measured(made)(params, tokens)
    for sizes in ({"fsdp": 2, "tensor": 2}, {"data": 2, "fsdp": 2}):
        of = dataclasses.replace(made, layout=dataclasses.replace(made.layout, **sizes))
        mesh = mesh_lib.make_mesh(of.layout)
        with jax.set_mesh(mesh):
            specs = jax.tree.map(lambda s: NamedSharding(mesh, s), rules.parameter_specs(of.model, of.layout))
            rows = jax.device_put(tokens, NamedSharding(mesh, PartitionSpec(BATCH_AXES, None)))
            found = measured(of)(jax.device_put(params, specs), rows)
        far = lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(b).max())
        apart[f"{kind} {sizes}"] = max(jax.tree.leaves(jax.tree.map(far, found, one)))
print(json.dumps(apart))
"""


@pytest.mark.slow
def test_on_a_mesh_the_estimates_are_those_of_one_device():
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-c", MESH], capture_output=True, text=True, env=os.environ | {"XLA_FLAGS": flags}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    apart = json.loads(done.stdout.splitlines()[-1])
    assert len(apart) == 4 and max(apart.values()) < 1e-4, apart
